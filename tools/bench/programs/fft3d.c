/*
 * fft3d.c: the heart of a pseudo-spectral program: three-dimensional Fourier transforms of several real fields, forward
 * and back. The grid has N^3 points and is cut into pencils over a process grid of Py x Pz ranks (rank = pz * Py + py).
 *
 *   x lines (real -> N/2+1 complex)  --exchange within rows-->  y lines  --exchange within columns-->  z lines
 *
 * The fields form a pipeline: while MPI_Ialltoallv exchanges the blocks of one field, lines of another are transformed.
 * FFTW transforms the lines, planned by estimate, so that equal input gives equal bits with any MPI library.
 *
 * Every repetition is checked: field 0 is a plane wave whose spectrum is known, all fields must come back, and the bits
 * must not change between repetitions. Checks are outside the measured time.
 *
 * A phase without transforms comes first; it shows the cost of a phase itself. Rank 0 sends the harness "begin" and
 * "end" around this phase and around the repetitions of each grid, then the samples as JSON.
 */
#include "control.h"
#include "repetitions.h"
#include "transport.h"

#include <complex.h>
#include <fftw3.h>
#include <inttypes.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VARIABLES_MAX = 64, WARM_UP = 1, TILE = 8, SLOTS = 2 };
/* Wave numbers of the plane wave of field 0. They differ, so that every exchange of axes changes the wave. */
enum { WAVE_X = 1, WAVE_Y = 2, WAVE_Z = 3 };
static const double TOLERANCE = 1e-11;

typedef double complex cell;

struct options {
    struct common common; /* sizes are points along each axis of a grid */
    int variables;
    int dimensions[2];    /* Py, Pz */
};

/* A part of an axis. */
struct range {
    int from;
    int length;
};

/* The block for one rank within an array. Cell (i, j, k) of the packed block, k fastest, is at
 * offset + i * stride[0] + j * stride[1] + k * stride[2]. */
struct block {
    size_t offset;
    int length[3];
    size_t stride[3];
};

/* One side of an exchange: a block for every rank, packed one behind the other. */
struct side {
    struct block *blocks;
    int *counts;
    int *displacements;
};

/* An exchange that is under way. */
struct slot {
    cell *send;
    cell *receive;
    MPI_Request request;
};

/* Exchange between ranks of a row or column. Side 0 belongs to the array before the exchange, side 1 to the array
 * after. */
struct exchange {
    MPI_Comm communicator;
    int ranks;
    struct side sides[2];
    struct slot slots[SLOTS];
};

struct transform {
    int n;
    int half;                /* cells of a transformed x line */
    int variables;
    struct range y, z;       /* ranges of this rank's x lines */
    struct range x, y_of_z;  /* x and z: ranges of y lines; x and y_of_z: ranges of z lines */
    double *fields[VARIABLES_MAX];
    cell *spectra[VARIABLES_MAX];
    cell *x_lines;
    cell *y_lines;
    struct exchange rows, columns;
    fftw_plan x_forward, x_backward, y_forward, y_backward, z_forward, z_backward;
    double *wave;            /* one period of a cosine in n points */
    int64_t in_mpi_ns;
};

/* One repetition on one rank. All fields are doubles, because samples travel by transport_exchange. */
struct sample {
    double elapsed_ms;
    double mpi_ms;
    double cpu_s;
    double wrong;
};
enum { SAMPLE_DOUBLES = sizeof(struct sample) / sizeof(double) };

/* ---- options ----------------------------------------------------------------------------------------------------- */

static struct options read_options(int argc, char **argv)
{
    struct options options = {.variables = 4};
    const char *process_grid = "";
    const struct option own[] = {
        {"variables", .number = &options.variables},
        {"process-grid", .text = &process_grid},
        {.name = NULL},
    };
    options.common = read_common(argc, argv, own, "POINTS");
    sscanf(process_grid, "%dx%d", &options.dimensions[0], &options.dimensions[1]);
    if (options.variables > VARIABLES_MAX ||
        options.dimensions[0] * options.dimensions[1] != (int)transport_ranks())
        transport_fail("up to %d variables and a process grid of all ranks are needed", VARIABLES_MAX);
    return options;
}

/* ---- distribution ------------------------------------------------------------------------------------------------ */

/* The part of `length` for index `at` of `parts`; if `parts` does not divide it, the first parts are longer by one. */
static struct range part(int length, int parts, int at)
{
    const int least = length / parts;
    const int more = length % parts;
    return (struct range){at * least + (at < more ? at : more), least + (at < more)};
}

/* FFTW's memory is equally aligned everywhere, so that one plan fits all arrays. */
static void *aligned(size_t bytes)
{
    void *memory = fftw_malloc(bytes > 0 ? bytes : 1);
    if (memory == NULL)
        transport_fail("no memory for %zu bytes", bytes);
    memset(memory, 0, bytes);
    return memory;
}

static size_t block_cells(const struct block *block)
{
    return (size_t)block->length[0] * (size_t)block->length[1] * (size_t)block->length[2];
}

/* The block between this rank and `rank` of a row or column of `ranks`. */
typedef struct block block_of(const struct transform *transform, int ranks, int rank);

static void lay_side(struct side *side, int ranks, block_of *block, const struct transform *transform)
{
    int at = 0;
    side->blocks = aligned(sizeof *side->blocks * (size_t)ranks);
    side->counts = aligned(sizeof *side->counts * (size_t)ranks);
    side->displacements = aligned(sizeof *side->displacements * (size_t)ranks);
    for (int rank = 0; rank < ranks; rank++) {
        side->blocks[rank] = block(transform, ranks, rank);
        side->counts[rank] = (int)block_cells(&side->blocks[rank]);
        side->displacements[rank] = at;
        at += side->counts[rank];
    }
}

static size_t side_cells(const struct side *side, int ranks)
{
    return (size_t)side->displacements[ranks - 1] + (size_t)side->counts[ranks - 1];
}

static struct block x_lines_block(const struct transform *t, int ranks, int rank)
{
    const struct range x = part(t->half, ranks, rank);
    const size_t half = (size_t)t->half;
    return (struct block){(size_t)x.from, {t->z.length, t->y.length, x.length}, {(size_t)t->y.length * half, half, 1}};
}

static struct block y_lines_block_of_row(const struct transform *t, int ranks, int rank)
{
    const struct range y = part(t->n, ranks, rank);
    const size_t n = (size_t)t->n;
    return (struct block){(size_t)y.from, {t->z.length, y.length, t->x.length}, {(size_t)t->x.length * n, 1, n}};
}

static struct block y_lines_block_of_column(const struct transform *t, int ranks, int rank)
{
    const struct range y = part(t->n, ranks, rank);
    const size_t n = (size_t)t->n;
    return (struct block){(size_t)y.from, {t->z.length, t->x.length, y.length}, {(size_t)t->x.length * n, n, 1}};
}

static struct block z_lines_block(const struct transform *t, int ranks, int rank)
{
    const struct range z = part(t->n, ranks, rank);
    const size_t n = (size_t)t->n;
    return (struct block){
        (size_t)z.from, {z.length, t->x.length, t->y_of_z.length}, {1, n, (size_t)t->x.length * n}};
}

static void lay_exchange(struct exchange *exchange, int color, int key, block_of *const blocks[2],
                         const struct transform *transform)
{
    MPI_Comm_split(MPI_COMM_WORLD, color, key, &exchange->communicator);
    MPI_Comm_size(exchange->communicator, &exchange->ranks);
    size_t most = 0;
    for (int side = 0; side < 2; side++) {
        lay_side(&exchange->sides[side], exchange->ranks, blocks[side], transform);
        const size_t cells = side_cells(&exchange->sides[side], exchange->ranks);
        most = cells > most ? cells : most;
    }
    for (int at = 0; at < SLOTS; at++)
        exchange->slots[at] = (struct slot){aligned(sizeof(cell) * most), aligned(sizeof(cell) * most),
                                            MPI_REQUEST_NULL};
}

static fftw_plan plan_lines(int n, size_t lines, cell *data, int direction)
{
    return fftw_plan_many_dft(1, &n, (int)lines, data, NULL, 1, n, data, NULL, 1, n, direction, FFTW_ESTIMATE);
}

static void make_plans(struct transform *t)
{
    const size_t x_lines = (size_t)t->y.length * (size_t)t->z.length;
    const size_t y_lines = (size_t)t->x.length * (size_t)t->z.length;
    const size_t z_lines = (size_t)t->x.length * (size_t)t->y_of_z.length;
    t->x_forward = fftw_plan_many_dft_r2c(1, &t->n, (int)x_lines, t->fields[0], NULL, 1, t->n, t->x_lines, NULL, 1,
                                          t->half, FFTW_ESTIMATE);
    t->x_backward = fftw_plan_many_dft_c2r(1, &t->n, (int)x_lines, t->x_lines, NULL, 1, t->half, t->fields[0], NULL, 1,
                                           t->n, FFTW_ESTIMATE);
    t->y_forward = plan_lines(t->n, y_lines, t->y_lines, FFTW_FORWARD);
    t->y_backward = plan_lines(t->n, y_lines, t->y_lines, FFTW_BACKWARD);
    t->z_forward = plan_lines(t->n, z_lines, t->spectra[0], FFTW_FORWARD);
    t->z_backward = plan_lines(t->n, z_lines, t->spectra[0], FFTW_BACKWARD);
    if (t->x_forward == NULL || t->x_backward == NULL || t->y_forward == NULL || t->y_backward == NULL ||
        t->z_forward == NULL || t->z_backward == NULL)
        transport_fail("FFTW has no plan for lines of %d points", t->n);
}

static struct transform *make_transform(const struct options *options, int n)
{
    struct transform *t = aligned(sizeof *t);
    const int rows = options->dimensions[0];
    const int columns = options->dimensions[1];
    const int in_row = (int)transport_rank() % rows;
    const int in_column = (int)transport_rank() / rows;
    t->n = n;
    t->half = n / 2 + 1;
    t->variables = options->variables;
    t->y = part(n, rows, in_row);
    t->z = part(n, columns, in_column);
    t->x = part(t->half, rows, in_row);
    t->y_of_z = part(n, columns, in_column);
    const size_t lines = (size_t)t->y.length * (size_t)t->z.length;
    for (int variable = 0; variable < t->variables; variable++) {
        t->fields[variable] = aligned(sizeof(double) * lines * (size_t)n);
        t->spectra[variable] = aligned(sizeof(cell) * (size_t)n * (size_t)t->x.length * (size_t)t->y_of_z.length);
    }
    t->x_lines = aligned(sizeof(cell) * lines * (size_t)t->half);
    t->y_lines = aligned(sizeof(cell) * (size_t)n * (size_t)t->x.length * (size_t)t->z.length);
    t->wave = aligned(sizeof(double) * (size_t)n);
    for (int at = 0; at < n; at++)
        t->wave[at] = cos(2 * M_PI * at / n);
    lay_exchange(&t->rows, in_column, in_row, (block_of *const[]){x_lines_block, y_lines_block_of_row}, t);
    lay_exchange(&t->columns, in_row, in_column, (block_of *const[]){y_lines_block_of_column, z_lines_block}, t);
    make_plans(t);
    return t;
}

static void free_exchange(struct exchange *exchange)
{
    for (int side = 0; side < 2; side++) {
        fftw_free(exchange->sides[side].blocks);
        fftw_free(exchange->sides[side].counts);
        fftw_free(exchange->sides[side].displacements);
    }
    for (int at = 0; at < SLOTS; at++) {
        fftw_free(exchange->slots[at].send);
        fftw_free(exchange->slots[at].receive);
    }
    MPI_Comm_free(&exchange->communicator);
}

static void free_transform(struct transform *t)
{
    const fftw_plan plans[] = {t->x_forward,  t->x_backward, t->y_forward,
                               t->y_backward, t->z_forward,  t->z_backward};
    for (size_t at = 0; at < sizeof plans / sizeof *plans; at++)
        fftw_destroy_plan(plans[at]);
    for (int variable = 0; variable < t->variables; variable++) {
        fftw_free(t->fields[variable]);
        fftw_free(t->spectra[variable]);
    }
    fftw_free(t->x_lines);
    fftw_free(t->y_lines);
    fftw_free(t->wave);
    free_exchange(&t->rows);
    free_exchange(&t->columns);
    fftw_free(t);
}

/* ---- exchanges --------------------------------------------------------------------------------------------------- */

enum copying { PACK, UNPACK };

/* Copies between an array and packed blocks, in tiles. Cells that lie across the lines of the array or of a block then
 * stay in the cache. */
static void copy_side(const struct exchange *exchange, int which, cell *array, cell *packed, enum copying copying)
{
    const struct side *side = &exchange->sides[which];
    for (int rank = 0; rank < exchange->ranks; rank++) {
        const struct block *block = &side->blocks[rank];
        cell *from_block = packed + side->displacements[rank];
        const int n1 = block->length[1];
        const int n2 = block->length[2];
        for (int i = 0; i < block->length[0]; i++)
            for (int tile = 0; tile < n2; tile += TILE)
                for (int j = 0; j < n1; j++) {
                    cell *at = array + block->offset + (size_t)i * block->stride[0] + (size_t)j * block->stride[1];
                    cell *in = from_block + ((size_t)i * (size_t)n1 + (size_t)j) * (size_t)n2;
                    const int end = tile + TILE < n2 ? tile + TILE : n2;
                    for (int k = tile; k < end; k++) {
                        cell *one = at + (size_t)k * block->stride[2];
                        if (copying == PACK)
                            in[k] = *one;
                        else
                            *one = in[k];
                    }
                }
    }
}

/* Packs `array`, which belongs to side `from`, and starts the exchange. */
static void start(struct transform *t, struct exchange *exchange, int from, int variable, cell *array)
{
    struct slot *slot = &exchange->slots[variable % SLOTS];
    const struct side *outgoing = &exchange->sides[from];
    const struct side *incoming = &exchange->sides[1 - from];
    copy_side(exchange, from, array, slot->send, PACK);
    const int64_t began = clock_now_ns();
    const int code = MPI_Ialltoallv(slot->send, outgoing->counts, outgoing->displacements, MPI_C_DOUBLE_COMPLEX,
                                    slot->receive, incoming->counts, incoming->displacements, MPI_C_DOUBLE_COMPLEX,
                                    exchange->communicator, &slot->request);
    t->in_mpi_ns += clock_now_ns() - began;
    if (code != MPI_SUCCESS)
        transport_fail("MPI_Ialltoallv ended with code %d", code);
}

/* Waits for the exchange and unpacks it into `array`, which belongs to the side opposite `from`. */
static void finish(struct transform *t, struct exchange *exchange, int from, int variable, cell *array)
{
    struct slot *slot = &exchange->slots[variable % SLOTS];
    const int64_t began = clock_now_ns();
    const int code = MPI_Wait(&slot->request, MPI_STATUS_IGNORE);
    t->in_mpi_ns += clock_now_ns() - began;
    if (code != MPI_SUCCESS)
        transport_fail("MPI_Wait ended with code %d", code);
    copy_side(exchange, 1 - from, array, slot->receive, UNPACK);
}

/* ---- the pipeline ------------------------------------------------------------------------------------------------ */

/* Each field is one step behind the previous field. While one field is exchanged, lines of another are transformed. */
static void forward(struct transform *t)
{
    for (int step = 0; step < t->variables + 2; step++) {
        if (step < t->variables) {
            fftw_execute_dft_r2c(t->x_forward, t->fields[step], t->x_lines);
            start(t, &t->rows, 0, step, t->x_lines);
        }
        if (step >= 1 && step - 1 < t->variables) {
            finish(t, &t->rows, 0, step - 1, t->y_lines);
            fftw_execute_dft(t->y_forward, t->y_lines, t->y_lines);
            start(t, &t->columns, 0, step - 1, t->y_lines);
        }
        if (step >= 2) {
            finish(t, &t->columns, 0, step - 2, t->spectra[step - 2]);
            fftw_execute_dft(t->z_forward, t->spectra[step - 2], t->spectra[step - 2]);
        }
    }
}

static void backward(struct transform *t)
{
    for (int step = 0; step < t->variables + 2; step++) {
        if (step < t->variables) {
            fftw_execute_dft(t->z_backward, t->spectra[step], t->spectra[step]);
            start(t, &t->columns, 1, step, t->spectra[step]);
        }
        if (step >= 1 && step - 1 < t->variables) {
            finish(t, &t->columns, 1, step - 1, t->y_lines);
            fftw_execute_dft(t->y_backward, t->y_lines, t->y_lines);
            start(t, &t->rows, 1, step - 1, t->y_lines);
        }
        if (step >= 2) {
            finish(t, &t->rows, 1, step - 2, t->x_lines);
            fftw_execute_dft_c2r(t->x_backward, t->x_lines, t->fields[step - 2]);
        }
    }
}

/* ---- input and checks -------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t word)
{
    word = (word ^ (word >> 32)) * 0x9e3779b97f4a7c15u;
    word = (word ^ (word >> 29)) * 0xbf58476d1ce4e5b9u;
    return word ^ (word >> 32);
}

/* A field's value at a point: a plane wave for field 0, pseudorandom numbers from -1 to 1 for the others. */
static double value(const struct transform *t, int variable, int x, int y, int z)
{
    if (variable == 0)
        return t->wave[(WAVE_X * x + WAVE_Y * y + WAVE_Z * z) % t->n];
    const uint64_t point = ((uint64_t)z * (uint64_t)t->n + (uint64_t)y) * (uint64_t)t->n + (uint64_t)x;
    return (double)(int64_t)mix(point + ((uint64_t)variable << 48)) * 0x1p-63;
}

static void fill(struct transform *t)
{
    for (int variable = 0; variable < t->variables; variable++) {
        double *at = t->fields[variable];
        for (int z = 0; z < t->z.length; z++)
            for (int y = 0; y < t->y.length; y++)
                for (int x = 0; x < t->n; x++)
                    *at++ = value(t, variable, x, y + t->y.from, z + t->z.from);
    }
}

/* Contribution of a number to the checksum. The checksum depends neither on the order nor on the owners of the
 * numbers. */
static uint64_t bits_at(double number, uint64_t place)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return mix(bits + place * 0x100000001b3u);
}

/* Checks the spectrum of the plane wave, and adds the bits of all spectra to the checksum. */
static double check_spectra(const struct transform *t, uint64_t *checksum)
{
    const double peak = 0.5 * t->n * t->n * t->n;
    double worst = 0;
    for (int variable = 0; variable < t->variables; variable++) {
        const cell *at = t->spectra[variable];
        for (int y = t->y_of_z.from; y < t->y_of_z.from + t->y_of_z.length; y++)
            for (int x = t->x.from; x < t->x.from + t->x.length; x++)
                for (int z = 0; z < t->n; z++, at++) {
                    const uint64_t line = (uint64_t)(y * t->half + x);
                    const uint64_t place = ((uint64_t)variable << 40) + (line << 12) + (uint64_t)z;
                    const double expected = x == WAVE_X && y == WAVE_Y && z == WAVE_Z ? peak : 0;
                    *checksum += bits_at(creal(*at), 2 * place) + bits_at(cimag(*at), 2 * place + 1);
                    if (variable == 0)
                        worst = fmax(worst, cabs(*at - expected) / peak);
                }
    }
    return worst;
}

/* Checks that every field has come back, and adds the bits of the fields to the checksum. */
static double check_fields(const struct transform *t, uint64_t *checksum)
{
    const double scale = 1.0 / ((double)t->n * t->n * t->n);
    double worst = 0;
    for (int variable = 0; variable < t->variables; variable++) {
        const double *at = t->fields[variable];
        for (int z = t->z.from; z < t->z.from + t->z.length; z++)
            for (int y = t->y.from; y < t->y.from + t->y.length; y++)
                for (int x = 0; x < t->n; x++, at++) {
                    const uint64_t place = ((uint64_t)(variable + t->variables) << 40) +
                                           ((uint64_t)(z * t->n + y) << 12) + (uint64_t)x;
                    *checksum += bits_at(*at, place);
                    worst = fmax(worst, fabs(*at * scale - value(t, variable, x, y, z)));
                }
    }
    return worst;
}

/* ---- repetitions ------------------------------------------------------------------------------------------------- */

struct measured {
    int64_t elapsed_ns;
    int64_t cpu_ns;
};

static void run(struct transform *t, void (*direction)(struct transform *), struct measured *sum)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const int64_t cpu = process_cpu_ns();
    const int64_t began = clock_now_ns();
    direction(t);
    sum->elapsed_ns += clock_now_ns() - began;
    sum->cpu_ns += process_cpu_ns() - cpu;
}

/* A pair of transforms of all fields; `checksum` covers the bits on this rank. */
static struct sample repeat(struct transform *t, uint64_t *checksum)
{
    struct measured sum = {0};
    *checksum = 0;
    t->in_mpi_ns = 0;
    fill(t);
    run(t, forward, &sum);
    const double spectra = check_spectra(t, checksum);
    run(t, backward, &sum);
    const double fields = check_fields(t, checksum);
    /* With this comparison a NaN counts as wrong. */
    const int right = spectra <= TOLERANCE && fields <= TOLERANCE;
    if (!right)
        fprintf(stderr, "rank %u: grid %d: off by %g in the spectra and by %g in the fields\n", transport_rank(), t->n,
                spectra, fields);
    return (struct sample){(double)sum.elapsed_ns / 1e6, (double)t->in_mpi_ns / 1e6, (double)sum.cpu_ns / 1e9, !right};
}

static void send_row(const struct transform *t, const struct sample *all, int repetitions, uint64_t checksum)
{
    const struct field elapsed_ms = {&all->elapsed_ms, SAMPLE_DOUBLES, repetitions};
    const struct field mpi_ms = {&all->mpi_ms, SAMPLE_DOUBLES, repetitions};
    const struct field cpu_s = {&all->cpu_s, SAMPLE_DOUBLES, repetitions};
    const struct field wrong = {&all->wrong, SAMPLE_DOUBLES, repetitions};
    FILE *row = row_begin();
    fprintf(row, "{\"grid\":%d,\"checksum\":\"%016" PRIx64 "\",", t->n, checksum);
    write_field(row, "slowest_ms", LARGEST, elapsed_ms);
    write_field(row, "mpi_ms", MEAN, mpi_ms);
    write_costs(row, cpu_s, wrong);
    fputc('}', row);
    row_send(row);
}

static void measure(const struct options *options, int n)
{
    struct transform *t = make_transform(options, n);
    struct sample *mine = allocate(sizeof *mine * (size_t)options->common.repetitions);
    uint64_t first = 0;
    uint64_t checksum = 0;
    double wrong = 0;
    for (int at = 0; at < WARM_UP; at++)
        wrong += repeat(t, &first).wrong;
    harness_mark("begin");
    for (int at = 0; at < options->common.repetitions; at++) {
        mine[at] = repeat(t, &checksum);
        if (checksum != first)
            fprintf(stderr, "rank %u: grid %d: other bits than in the repetition before\n", transport_rank(), n);
        mine[at].wrong = mine[at].wrong > 0 || checksum != first;
    }
    harness_mark("end");
    mine[0].wrong += wrong;
    struct sample *all = gather_doubles(mine, options->common.repetitions * SAMPLE_DOUBLES);
    MPI_Reduce(&first, &checksum, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (transport_rank() == 0)
        send_row(t, all, options->common.repetitions, checksum);
    free(mine);
    free(all);
    free_transform(t);
}

int main(int argc, char **argv)
{
    transport_start(&argc, &argv);
    const struct options options = read_options(argc, argv);
    begin_measuring(&options.common);
    harness_mark("begin");
    harness_mark("end");
    for (int at = 0; at < options.common.sizes; at++)
        measure(&options, (int)*size_at(&options.common, at));
    transport_stop();
    return 0;
}
