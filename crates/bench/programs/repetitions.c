/* repetitions.c: see repetitions.h. */
#include "repetitions.h"

#include "control.h"
#include "options.h"
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

int parse_sizes(const char *text, const char *shape, int parts, int most, int64_t *numbers)
{
    int rows = 0;
    for (; *text != '\0'; rows++) {
        if (rows == most)
            transport_fail("more than %d sizes", most);
        for (int part = 1; part <= parts; part++) {
            const bool read = number_read(text, numbers++, &text) == 0;
            if (!read || (part < parts ? *text != ':' : *text != ',' && *text != '\0'))
                transport_fail("not %s: before \"%s\"", shape, text);
            text += *text != '\0';
        }
    }
    return rows;
}

void check_layout(const char *layout)
{
    if (layout != NULL && host_check(layout, transport_rank(), transport_ranks()) != 0)
        transport_fail("not where it belongs");
}

void harness_open(const char *control)
{
    if (transport_rank() != 0)
        return;
    harness = control_connect(control);
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

void bind_main(int core)
{
    if (core >= 0 && core_bind(0, core) != 0)
        transport_fail("the rank cannot be bound to core %d", core);
}
