/*
 * radix.c: a parallel radix sort (CD-8), each pass in five steps:
 *
 *   count the own keys of each bucket
 *   move the own keys into the order of their buckets     while MPI_Iallgather
 *                                                         gathers the counts of all ranks, the histogram
 *   find the place of each bucket by prefix sums over the histogram
 *   put the keys in their places, at any rank, by one-sided calls
 *
 * A key has 32 bits. A pass sorts by one digit to the base of the number of buckets, lowest digit first. All ranks have
 * equally many keys, before and after a sort.
 *
 * For each size two kinds of sorts alternate. "overlapped" sorts as above. "in turn" moves the keys after the histogram
 * has arrived, and so shows the time of each step alone. Every result must equal a qsort of all keys; this check is
 * outside the measured time. Ranks begin a sort together by a fence, not by a barrier, so the histogram is
 * the only collective that can be offloaded. The harness measures processor time by phases: the first phase has no
 * sorts and shows the cost of a phase itself.
 */
#include "control.h"
#include "repetitions.h"
#include "transport.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 2, KEY_BITS = 32 };
enum kind { OVERLAPPED, IN_TURN, KINDS };

/* The numbers of a size: buckets, and keys of each rank. */
enum { BUCKETS, KEYS };

struct sort {
    uint32_t buckets;
    size_t keys;           /* keys of each rank */
    uint32_t *window_keys; /* the keys to sort; the window in which keys arrive */
    uint32_t *moved;       /* the same keys in the order of their buckets */
    uint32_t *input;
    uint32_t *expected;
    uint32_t *counts;      /* keys of each bucket on this rank */
    uint32_t *histogram;   /* the counts of all ranks */
    uint64_t *places;      /* place of each bucket's first own key: at first on this rank, later among all keys */
    int *lengths;          /* lengths of the pieces for one rank; the next array holds their places on that rank */
    int *displacements;
    MPI_Win window;
};

/* One sort on one rank. All fields are doubles, because samples travel by transport_exchange. */
struct sample {
    double elapsed_ms;
    double exchange_ms; /* time of the histogram's exchange, in turn */
    double moving_ms;   /* time of moving keys, in turn */
    double both_ms;     /* time of exchange and moving, overlapped */
    double cpu_s;       /* processor time of all threads */
    double wrong;
};
enum { SAMPLE_DOUBLES = sizeof(struct sample) / sizeof(double) };

/* ---- the sort ---- */

/* The bucket of a key. `divisor` is the power of the number of buckets that belongs to this pass. */
static uint32_t bucket_of(const struct sort *s, uint32_t divisor, uint32_t key)
{
    return key / divisor % s->buckets;
}

static void count_keys(struct sort *s, uint32_t divisor)
{
    memset(s->counts, 0, sizeof *s->counts * s->buckets);
    for (size_t at = 0; at < s->keys; at++)
        s->counts[bucket_of(s, divisor, s->window_keys[at])]++;
}

static void move_keys(struct sort *s, uint32_t divisor)
{
    uint64_t place = 0;
    for (uint32_t bucket = 0; bucket < s->buckets; bucket++) {
        s->places[bucket] = place;
        place += s->counts[bucket];
    }
    for (size_t at = 0; at < s->keys; at++)
        s->moved[s->places[bucket_of(s, divisor, s->window_keys[at])]++] = s->window_keys[at];
}

static void find_places(struct sort *s)
{
    const uint32_t own = transport_rank(), ranks = transport_ranks();
    uint64_t place = 0;
    for (uint32_t bucket = 0; bucket < s->buckets; bucket++)
        for (uint32_t rank = 0; rank < ranks; rank++) {
            if (rank == own)
                s->places[bucket] = place;
            place += s->histogram[(size_t)rank * s->buckets + bucket];
        }
}

/* Puts the keys from `first` up to `end` to one rank, in pieces. */
static void put(struct sort *s, uint32_t rank, int pieces, const uint32_t *first, const uint32_t *end)
{
    MPI_Datatype places;
    if (pieces == 0)
        return;
    MPI_Type_indexed(pieces, s->lengths, s->displacements, MPI_UINT32_T, &places);
    MPI_Type_commit(&places);
    MPI_Put(first, (int)(end - first), MPI_UINT32_T, (int)rank, 0, 1, places, s->window);
    MPI_Type_free(&places);
}

/* Puts all keys. Later buckets go to later ranks, so the keys for one rank lie side by side here and need one call. */
static void redistribute(struct sort *s)
{
    const uint32_t *first = s->moved, *end = s->moved;
    uint32_t to = 0;
    int pieces = 0;
    MPI_Win_fence(MPI_MODE_NOPRECEDE, s->window);
    for (uint32_t bucket = 0; bucket < s->buckets; bucket++) {
        uint64_t place = s->places[bucket];
        for (uint64_t left = s->counts[bucket]; left > 0;) {
            const uint32_t rank = (uint32_t)(place / s->keys);
            const uint64_t room = s->keys - place % s->keys, length = left < room ? left : room;
            if (rank != to) {
                put(s, to, pieces, first, end);
                first = end;
                to = rank;
                pieces = 0;
            }
            s->lengths[pieces] = (int)length;
            s->displacements[pieces++] = (int)(place % s->keys);
            end += length;
            place += length;
            left -= length;
        }
    }
    put(s, to, pieces, first, end);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, s->window);
}

static void start_histogram(struct sort *s, MPI_Request *request)
{
    if (MPI_Iallgather(s->counts, (int)s->buckets, MPI_UINT32_T, s->histogram, (int)s->buckets, MPI_UINT32_T,
                       MPI_COMM_WORLD, request) != MPI_SUCCESS)
        transport_fail("MPI_Iallgather fails");
}

static void end_histogram(MPI_Request *request)
{
    if (MPI_Wait(request, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        transport_fail("MPI_Wait fails");
}

static double ms_since(int64_t *then)
{
    const int64_t before = *then;
    *then = clock_now_ns();
    return (double)(*then - before) / 1e6;
}

static void pass(struct sort *s, uint32_t divisor, enum kind kind, struct sample *sum)
{
    MPI_Request request;
    count_keys(s, divisor);
    int64_t then = clock_now_ns();
    start_histogram(s, &request);
    if (kind == OVERLAPPED) {
        move_keys(s, divisor);
        end_histogram(&request);
        sum->both_ms += ms_since(&then);
    } else {
        end_histogram(&request);
        sum->exchange_ms += ms_since(&then);
        move_keys(s, divisor);
        sum->moving_ms += ms_since(&then);
    }
    find_places(s);
    redistribute(s);
}

static struct sample repeat(struct sort *s, enum kind kind)
{
    struct sample sample = {0};
    memcpy(s->window_keys, s->input, sizeof *s->input * s->keys);
    MPI_Win_fence(0, s->window);
    const int64_t cpu = process_cpu_ns();
    int64_t then = clock_now_ns();
    for (uint64_t divisor = 1; divisor >> KEY_BITS == 0; divisor *= s->buckets)
        pass(s, (uint32_t)divisor, kind, &sample);
    sample.elapsed_ms = ms_since(&then);
    sample.cpu_s = (double)(process_cpu_ns() - cpu) / 1e9;
    sample.wrong = memcmp(s->window_keys, s->expected, sizeof *s->expected * s->keys) != 0;
    return sample;
}

/* ---- keys ---- */

/* Key number `at`: a pseudorandom number. */
static uint32_t key(uint64_t at)
{
    uint64_t word = (at + 1) * 0x9e3779b97f4a7c15u;
    word = (word ^ (word >> 29)) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(word >> KEY_BITS);
}

static int compare(const void *a, const void *b)
{
    const uint32_t one = *(const uint32_t *)a, other = *(const uint32_t *)b;
    return (one > other) - (one < other);
}

static void make_keys(struct sort *s)
{
    const size_t all = s->keys * transport_ranks(), own = s->keys * transport_rank();
    uint32_t *sorted = allocate(sizeof *sorted * all);
    for (size_t at = 0; at < all; at++)
        sorted[at] = key(at);
    memcpy(s->input, sorted + own, sizeof *sorted * s->keys);
    qsort(sorted, all, sizeof *sorted, compare);
    memcpy(s->expected, sorted + own, sizeof *sorted * s->keys);
    free(sorted);
}

static void make_sort(struct sort *s, int64_t buckets, int64_t keys)
{
    *s = (struct sort){.buckets = (uint32_t)buckets, .keys = (size_t)keys};
    uint32_t **of_keys[] = {&s->window_keys, &s->moved, &s->input, &s->expected};
    for (size_t at = 0; at < sizeof of_keys / sizeof *of_keys; at++)
        *of_keys[at] = transport_alloc(sizeof(uint32_t) * s->keys);
    s->counts = transport_alloc(sizeof *s->counts * s->buckets);
    s->histogram = transport_alloc(sizeof *s->histogram * s->buckets * transport_ranks());
    s->places = allocate(sizeof *s->places * s->buckets);
    s->lengths = allocate(sizeof *s->lengths * s->buckets);
    s->displacements = allocate(sizeof *s->displacements * s->buckets);
    make_keys(s);
    MPI_Win_create(s->window_keys, (MPI_Aint)(sizeof(uint32_t) * s->keys), sizeof(uint32_t), MPI_INFO_NULL,
                   MPI_COMM_WORLD, &s->window);
}

static void free_sort(struct sort *s)
{
    void *memory[] = {s->window_keys, s->moved,  s->input,   s->expected,     s->counts,
                      s->histogram,   s->places, s->lengths, s->displacements};
    MPI_Win_free(&s->window);
    for (size_t at = 0; at < sizeof memory / sizeof *memory; at++)
        free(memory[at]);
}

/* ---- repetitions ---- */

/* Sends the row of one size to the harness. `all` holds the times of each rank: sorts of the two kinds in turn. */
static void send_row(const struct sort *s, const struct sample *all, int repetitions)
{
    const struct sample *turn = all + IN_TURN, *both = all + OVERLAPPED;
    enum { OF_KIND = SAMPLE_DOUBLES * KINDS };
    FILE *row = row_begin();
    fprintf(row, "{\"buckets\":%u,\"keys\":%zu,", s->buckets, s->keys);
    write_field(row, "slowest_ms", LARGEST, (struct field){&both->elapsed_ms, OF_KIND, repetitions});
    write_field(row, "in_turn_ms", LARGEST, (struct field){&turn->elapsed_ms, OF_KIND, repetitions});
    write_field(row, "exchange_ms", MEAN, (struct field){&turn->exchange_ms, OF_KIND, repetitions});
    write_field(row, "moving_ms", MEAN, (struct field){&turn->moving_ms, OF_KIND, repetitions});
    write_field(row, "both_ms", MEAN, (struct field){&both->both_ms, OF_KIND, repetitions});
    write_costs(row, (struct field){&all->cpu_s, SAMPLE_DOUBLES, KINDS * repetitions},
                (struct field){&all->wrong, SAMPLE_DOUBLES, KINDS * repetitions});
    fputc('}', row);
    row_send(row);
}

static void measure(const struct common *common, const int64_t *size)
{
    struct sort s;
    struct sample *mine = allocate(sizeof *mine * KINDS * (size_t)common->repetitions);
    double wrong = 0;
    make_sort(&s, size[BUCKETS], size[KEYS]);
    for (int at = 0; at < WARM_UP; at++)
        wrong += repeat(&s, OVERLAPPED).wrong;
    harness_mark("begin");
    for (int at = 0; at < KINDS * common->repetitions; at++)
        mine[at] = repeat(&s, at % KINDS);
    harness_mark("end");
    mine[0].wrong += wrong;
    struct sample *all = gather_doubles(mine, KINDS * common->repetitions * SAMPLE_DOUBLES);
    if (transport_rank() == 0)
        send_row(&s, all, common->repetitions);
    free(mine);
    free(all);
    free_sort(&s);
}

int main(int argc, char **argv)
{
    transport_start(&argc, &argv);
    const struct option own[] = {{.name = NULL}};
    const struct common common = read_common(argc, argv, own, "BUCKETS:KEYS");
    begin_measuring(&common);
    harness_mark("begin");
    harness_mark("end");
    for (int at = 0; at < common.sizes; at++)
        measure(&common, size_at(&common, at));
    transport_stop();
    return 0;
}
