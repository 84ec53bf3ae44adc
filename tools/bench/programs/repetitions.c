/* repetitions.c: see repetitions.h. */
#include "repetitions.h"

#include "control.h"
#include "transport.h"

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

/* The decimal number at the beginning of a text; `rest` is the text behind it. */
static int64_t read_number(const char *text, const char **rest)
{
    char *end = NULL;
    const int64_t value = strtoll(text, &end, 10);
    if (end == text)
        transport_fail("not a number: %s", text);
    *rest = end;
    return value;
}

/* The option whose name is the first `length` characters of the word, or the nameless option at the end. */
static const struct option *option_named(const struct option *list, const char *word, size_t length)
{
    while (list->name != NULL && (strlen(list->name) != length || strncmp(list->name, word, length) != 0))
        list++;
    return list;
}

/* Stores the value of a word. */
static void read_option(const struct option *common, const struct option *own, const char *word)
{
    const size_t length = strcspn(word, "=");
    const struct option *option = option_named(common, word, length);
    if (option->name == NULL)
        option = option_named(own, word, length);
    if (option->name == NULL || word[length] == '\0')
        transport_fail("no option NAME=VALUE: %s", word);
    const char *value = word + length + 1;
    if (option->text != NULL)
        *option->text = value;
    else if (option->number != NULL)
        *option->number = (int)read_number(value, &value);
    else
        *option->long_number = read_number(value, &value);
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
            *number++ = read_number(text, &text);
            if (part < common->parts ? *text != ':' : *text != ',' && *text != '\0')
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
    for (int at = 1; at < argc; at++)
        read_option(known, own, argv[at]);
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
    /* The receive is posted before the barrier, so that no rank posts while the harness reads the counters. */
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

static char *row_text;
static size_t row_length;

FILE *row_begin(void)
{
    FILE *row = open_memstream(&row_text, &row_length);
    if (row == NULL)
        transport_fail("no memory for the report");
    return row;
}

void row_send(FILE *row)
{
    fclose(row);
    if (harness >= 0 && control_send(harness, "row %s\n", row_text) != 0)
        transport_fail("the harness is gone");
    free(row_text);
}

/* The value of one rank in one repetition. */
static const double *value_of(const struct field *field, uint32_t rank, int repetition)
{
    return field->first + (rank * (size_t)field->repetitions + (size_t)repetition) * field->stride;
}

double largest_but(const struct field *field, int repetition, int without)
{
    double largest = 0;
    for (uint32_t rank = 0; rank < transport_ranks(); rank++) {
        const double value = *value_of(field, rank, repetition);
        largest = (int)rank != without && value > largest ? value : largest;
    }
    return largest;
}

static double sum_of(const struct field *field, int repetition)
{
    double sum = 0;
    for (uint32_t rank = 0; rank < transport_ranks(); rank++)
        sum += *value_of(field, rank, repetition);
    return sum;
}

double total_of(const struct field *field)
{
    double total = 0;
    for (int at = 0; at < field->repetitions; at++)
        total += sum_of(field, at);
    return total;
}

void write_field(FILE *row, const char *name, enum over_ranks over, struct field field)
{
    fprintf(row, "\"%s\":[", name);
    for (int at = 0; at < field.repetitions; at++) {
        const double value = over == LARGEST ? largest_but(&field, at, -1) : sum_of(&field, at);
        fprintf(row, "%s%.6f", at > 0 ? "," : "", over == MEAN ? value / transport_ranks() : value);
    }
    fputs("],", row);
}

void write_costs(FILE *row, struct field cpu_s, struct field wrong)
{
    fprintf(row, "\"cpu_s\":%.9f,\"wrong\":%.0f", total_of(&cpu_s), total_of(&wrong));
}

void mark_early(struct field began_ns, struct field ended_ns, double *wrong)
{
    for (int at = 0; at < began_ns.repetitions; at++) {
        const double last_ns = largest_but(&began_ns, at, -1);
        for (uint32_t rank = 0; rank < transport_ranks(); rank++) {
            const double *ended = value_of(&ended_ns, rank, at);
            wrong[ended - ended_ns.first] += *ended < last_ns;
        }
    }
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
