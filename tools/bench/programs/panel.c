/*
 * panel.c: a dense system solved by LU factorisation with row exchanges, its panels broadcast ahead of their use.
 *
 *   panel UNKNOWNS REPETITIONS
 *
 * Blocks of columns are assigned to the ranks in turn, with the right side as one more column. At each step the owner
 * of the next block brings this block up to date, factors it and starts its broadcast with MPI_Ibcast. Then all ranks
 * apply the current panel to the rest of their columns, and test the broadcast after each block. The upper triangle is
 * solved block by block from the end. The result is checked in the equations, which are generated again for this check.
 */
#include <float.h>
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 32
/* Largest residual, in units of rounding errors. */
static const double TOLERANCE = 16;

static int own_rank, all_ranks;

/* The factored columns of a block from the diagonal down. In front of them stand the numbers of the rows that were
 * exchanged, one for each column. */
struct panel {
    double exchanged[WIDTH];
    double columns[];
};

struct system {
    long n, blocks;
    double *columns;      /* columns of this rank's blocks; all blocks are whole */
    double *right;        /* right side, on the rank that follows the owner of the last block */
    struct panel *current, *next;
    MPI_Request broadcast;
};

static void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL) {
        fprintf(stderr, "rank %d: no memory\n", own_rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

static int owner(long block)
{
    return (int)(block % all_ranks);
}

static double *block_columns(const struct system *s, long block)
{
    return s->columns + block / all_ranks * WIDTH * s->n;
}

/* A number between -1 and 1 that depends on row and column alone; the right side is column n. */
static double element(const struct system *s, long row, long column)
{
    uint64_t number = ((uint64_t)(column * s->n + row) + 1) * 0x9e3779b97f4a7c15u;
    number ^= number >> 32;
    number *= 0xd6e8feb86659fd93u;
    number ^= number >> 32;
    number *= 0xd6e8feb86659fd93u;
    return (double)(int64_t)number / 9223372036854775808.0;
}

static void fill_column(const struct system *s, double *to, long column)
{
    for (long row = 0; row < s->n; row++)
        to[row] = element(s, row, column);
}

static void fill(struct system *s)
{
    for (long block = own_rank; block < s->blocks; block += all_ranks)
        for (long at = 0; at < WIDTH; at++)
            fill_column(s, block_columns(s, block) + at * s->n, block * WIDTH + at);
    fill_column(s, s->right, s->n);
}

static void exchange(double *column, long row, long other)
{
    const double value = column[row];
    column[row] = column[other];
    column[other] = value;
}

/* Brings one column up to date with the panel of `block`: exchanges rows, solves the unit triangle, updates. */
static void apply_to_column(const struct system *s, const struct panel *panel, long block, double *column)
{
    const long top = block * WIDTH, height = s->n - top;
    for (long at = 0; at < WIDTH; at++)
        exchange(column, top + at, (long)panel->exchanged[at]);
    double *head = column + top;
    for (long at = 0; at < WIDTH; at++)
        for (long row = at + 1; row < WIDTH; row++)
            head[row] -= panel->columns[at * height + row] * head[at];
    for (long at = 0; at < WIDTH; at += 4) {
        const double *first = panel->columns + at * height;
        const double *second = first + height, *third = second + height, *fourth = third + height;
        for (long row = WIDTH; row < height; row++)
            head[row] -= first[row] * head[at] + second[row] * head[at + 1] + third[row] * head[at + 2] +
                         fourth[row] * head[at + 3];
    }
}

static void apply_to_block(const struct system *s, long step, long block)
{
    for (long at = 0; at < WIDTH; at++)
        apply_to_column(s, s->current, step, block_columns(s, block) + at * s->n);
}

/* Factors the columns of a block in place and copies them into a panel. */
static void factor(const struct system *s, long block, struct panel *panel)
{
    const long n = s->n, top = block * WIDTH;
    double *columns = block_columns(s, block);
    for (long at = 0; at < WIDTH; at++) {
        double *pivot = columns + at * n;
        long largest = top + at;
        for (long row = top + at + 1; row < n; row++)
            if (fabs(pivot[row]) > fabs(pivot[largest]))
                largest = row;
        panel->exchanged[at] = (double)largest;
        for (long each = 0; each < WIDTH; each++)
            exchange(columns + each * n, top + at, largest);
        for (long row = top + at + 1; row < n; row++)
            pivot[row] /= pivot[top + at];
        for (long each = at + 1; each < WIDTH; each++) {
            double *column = columns + each * n;
            for (long row = top + at + 1; row < n; row++)
                column[row] -= pivot[row] * column[top + at];
        }
    }
    for (long at = 0; at < WIDTH; at++)
        memcpy(panel->columns + at * (n - top), columns + at * n + top, sizeof(double) * (size_t)(n - top));
}

static void start_broadcast(struct system *s, long block)
{
    if (owner(block) == own_rank)
        factor(s, block, s->next);
    const int doubles = WIDTH + (int)(WIDTH * (s->n - block * WIDTH));
    MPI_Ibcast(s->next, doubles, MPI_DOUBLE, owner(block), MPI_COMM_WORLD, &s->broadcast);
}

static void end_broadcast(struct system *s)
{
    MPI_Wait(&s->broadcast, MPI_STATUS_IGNORE);
    struct panel *arrived = s->next;
    s->next = s->current;
    s->current = arrived;
}

static void factor_all(struct system *s)
{
    start_broadcast(s, 0);
    for (long step = 0; step < s->blocks; step++) {
        end_broadcast(s);
        const long next = step + 1;
        if (next < s->blocks) {
            if (owner(next) == own_rank)
                apply_to_block(s, step, next);
            start_broadcast(s, next);
        }
        for (long block = own_rank; block < s->blocks; block += all_ranks)
            if (block > next) {
                int arrived;
                apply_to_block(s, step, block);
                MPI_Test(&s->broadcast, &arrived, MPI_STATUS_IGNORE);
            }
        if (owner(s->blocks) == own_rank)
            apply_to_column(s, s->current, step, s->right);
    }
}

/* Solves the upper triangle; x is the right side at first. The owner of each block solves it, and broadcasts
 * the solution of the block and the updated right side of the rows above. */
static void solve_upper(const struct system *s, double *x)
{
    MPI_Bcast(x, (int)s->n, MPI_DOUBLE, owner(s->blocks), MPI_COMM_WORLD);
    for (long block = s->blocks - 1; block >= 0; block--) {
        if (owner(block) == own_rank)
            for (long at = WIDTH - 1; at >= 0; at--) {
                const double *column = block_columns(s, block) + at * s->n;
                const long diagonal = block * WIDTH + at;
                x[diagonal] /= column[diagonal];
                for (long row = 0; row < diagonal; row++)
                    x[row] -= column[row] * x[diagonal];
            }
        MPI_Bcast(x, (int)((block + 1) * WIDTH), MPI_DOUBLE, owner(block), MPI_COMM_WORLD);
    }
}

/* |A x - b| / (rounding error * n * (|A| |x| + |b|)), in maximum norms; |A| is the largest sum of a row. */
static double residual(const struct system *s, const double *x)
{
    double *sums = allocate(sizeof(double) * (size_t)s->n * 2), *norms = sums + s->n;
    for (long block = own_rank; block < s->blocks; block += all_ranks)
        for (long column = block * WIDTH; column < (block + 1) * WIDTH; column++)
            for (long row = 0; row < s->n; row++) {
                sums[row] += element(s, row, column) * x[column];
                norms[row] += fabs(element(s, row, column));
            }
    MPI_Allreduce(MPI_IN_PLACE, sums, (int)s->n * 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    double off = 0, matrix = 0, solution = 0, right = 0;
    for (long row = 0; row < s->n; row++) {
        const double b = element(s, row, s->n), difference = fabs(sums[row] - b);
        /* fmax would ignore a NaN. */
        off = difference <= off ? off : difference;
        matrix = fmax(matrix, norms[row]);
        solution = fmax(solution, fabs(x[row]));
        right = fmax(right, fabs(b));
    }
    free(sums);
    return off / (DBL_EPSILON * (double)s->n * (matrix * solution + right));
}

static struct system make_system(long n)
{
    const long blocks = n / WIDTH;
    const size_t panel = sizeof(struct panel) + sizeof(double) * WIDTH * (size_t)n;
    return (struct system){
        .n = n,
        .blocks = blocks,
        .columns = allocate(sizeof(double) * (size_t)((blocks + all_ranks - 1) / all_ranks * WIDTH * n)),
        .right = allocate(sizeof(double) * (size_t)n),
        .current = allocate(panel),
        .next = allocate(panel),
        .broadcast = MPI_REQUEST_NULL,
    };
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &all_ranks);
    const long n = argc == 3 ? atol(argv[1]) : 0;
    const long repetitions = argc == 3 ? atol(argv[2]) : 0;
    if (n < WIDTH || n > 65536 || n % WIDTH != 0 || repetitions < 1) {
        fprintf(stderr, "usage: panel UNKNOWNS REPETITIONS, the unknowns a multiple of %d\n", WIDTH);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    struct system s = make_system(n);
    double took = 0, worst = 0, slowest;
    for (long at = 0; at < repetitions; at++) {
        fill(&s);
        MPI_Barrier(MPI_COMM_WORLD);
        const double began = MPI_Wtime();
        factor_all(&s);
        solve_upper(&s, s.right);
        took += MPI_Wtime() - began;
        const double off = residual(&s, s.right);
        worst = off <= worst ? worst : off;
    }
    MPI_Reduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    free(s.columns);
    free(s.right);
    free(s.current);
    free(s.next);
    if (own_rank == 0)
        printf("seconds=%.6f check=%s residual=%g\n", slowest, worst <= TOLERANCE ? "ok" : "wrong", worst);
    MPI_Finalize();
    return 0;
}
