/* repetitions.c: see repetitions.h. */
#include "repetitions.h"

#include "control.h"
#include "transport.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int harness = -1;

void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL)
        transport_fail("no memory for %zu bytes", bytes);
    return memory;
}

static int count_of(const char *text, char wanted)
{
    int count = 0;
    for (; *text != '\0'; text++)
        count += *text == wanted;
    return count;
}

static void read_sizes(struct common *common, const char *text, const char *shape)
{
    common->parts = count_of(shape, ':') + 1;
    common->numbers = allocate(sizeof *common->numbers * (size_t)(common->parts * (count_of(text, ',') + 1)));
    for (int64_t *number = common->numbers; *text != '\0'; common->sizes++)
        for (int part = 1; part <= common->parts; part++) {
            const bool read = number_read(text, number++, &text) == 0;
            if (!read || (part < common->parts ? *text != ':' : *text != ',' && *text != '\0'))
                transport_fail("not %s: before \"%s\"", shape, text);
            text += *text != '\0';
        }
}

struct common read_common(int argc, char **argv, const struct option *own, const char *shape)
{
    struct common common = {.repetitions = 1, .main_core = -1};
    const char *sizes = "";
    const struct option known[] = {
        {"control", .text = &common.control},
        {"layout", .text = &common.layout},
        {"sizes", .text = &sizes},
        {"repetitions", .number = &common.repetitions},
        {"refill-ns", .long_number = &common.refill_ns},
        {"main-core", .number = &common.main_core},
        {.name = NULL},
    };
    if (options_read(argc, argv, known, own) != 0)
        transport_fail("cannot be started so");
    read_sizes(&common, sizes, shape);
    if (common.control == NULL || common.sizes == 0 || common.repetitions < 1)
        transport_fail("control, sizes and repetitions are needed");
    if (common.layout != NULL && host_check(common.layout, transport_rank(), transport_ranks()) != 0)
        transport_fail("not where it belongs");
    return common;
}

const int64_t *size_at(const struct common *common, int at)
{
    return common->numbers + at * (ptrdiff_t)common->parts;
}

int64_t largest_size(const struct common *common)
{
    int64_t largest = 0;
    for (int at = 0; at < common->sizes; at++)
        largest = *size_at(common, at) > largest ? *size_at(common, at) : largest;
    return largest;
}

void begin_measuring(const struct common *common)
{
    if (common->main_core >= 0 && core_bind(0, common->main_core) != 0)
        transport_fail("the rank cannot be bound to core %d", common->main_core);
    if (transport_rank() != 0)
        return;
    harness = control_connect(common->control);
    if (harness < 0 || control_send(harness, "library %s\n", transport_library()) != 0)
        transport_fail("no line to the harness");
}

void harness_mark(const char *what)
{
    static struct transport_message *words;
    static char word;
    char answer[16];
    const uint32_t ranks = transport_ranks();
    if (words == NULL)
        words = allocate(sizeof *words * ranks);
    /* Posted before the barrier, so that nobody hands anything over while the counters are read. */
    words[0] = (struct transport_message){.sent = 0, .peer = 0, .memory = &word, .bytes = 0};
    if (transport_rank() != 0)
        transport_messages(words, 1);
    transport_barrier();
    if (harness >= 0 && (control_send(harness, "%s\n", what) != 0 ||
                         control_receive(harness, answer, sizeof answer) != 0 || strcmp(answer, "ok") != 0))
        transport_fail("the harness is gone");
    if (transport_rank() == 0) {
        for (uint32_t to = 1; to < ranks; to++)
            words[to] = (struct transport_message){.sent = 1, .peer = to, .memory = &word, .bytes = 0};
        transport_messages(words + 1, (int)ranks - 1);
    }
    transport_wait();
}

void harness_say(const char *line)
{
    if (harness >= 0 && control_send(harness, "%s\n", line) != 0)
        transport_fail("the harness is gone");
}

FILE *row_begin(char **text, size_t *length)
{
    FILE *row = open_memstream(text, length);
    if (row == NULL)
        transport_fail("no memory for the report");
    return row;
}

void row_send(FILE *row, char **text)
{
    fclose(row);
    if (harness >= 0 && control_send(harness, "row %s\n", *text) != 0)
        transport_fail("the harness is gone");
    free(*text);
}

void *gather_doubles(const void *mine, int count)
{
    double *all = allocate(sizeof *all * (size_t)count * transport_ranks());
    transport_exchange(mine, all, count);
    return all;
}

int64_t agree_start(int64_t refill_ns)
{
    static double *all;
    const double mine = (double)clock_now_ns();
    double latest = mine;
    if (all == NULL)
        all = allocate(sizeof *all * transport_ranks());
    transport_exchange(&mine, all, 1);
    for (uint32_t rank = 0; rank < transport_ranks(); rank++)
        latest = all[rank] > latest ? all[rank] : latest;
    return (int64_t)latest + refill_ns;
}
