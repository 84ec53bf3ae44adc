/*
 * cg.c: conjugate gradients on the Poisson equation, a program that consists of small calls.
 *
 *   cg POINTS SOLVES
 *
 * The unknowns are a cube of POINTS^3 with a seven-point stencil, cut into slabs along z. An iteration exchanges the
 * planes at the edges of the slabs with MPI_Isend and MPI_Irecv. It computes two sums of 8 bytes with MPI_Allreduce.
 * The number of iterations is fixed, so that every run has the same work. This number suffices to solve the equations;
 * the residual of each solve is checked afterwards.
 */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const int ITERATIONS_PER_POINT = 4;
static const double TOLERANCE = 1e-8;

static int own_rank, all_ranks;

struct slab {
    long n, planes;  /* planes of n * n unknowns on this rank */
    long from;       /* number of the first plane */
};

static long plane(const struct slab *s)
{
    return s->n * s->n;
}

/* A vector with room for the neighbours' planes. Planes beyond the cube stay 0. */
static double *vector(const struct slab *s)
{
    double *all = calloc((size_t)(plane(s) * (s->planes + 2)), sizeof *all);
    if (all == NULL) {
        fprintf(stderr, "rank %d: no memory\n", own_rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return all + plane(s);
}

static void free_vector(const struct slab *s, double *v)
{
    free(v - plane(s));
}

static double dot(const struct slab *s, const double *a, const double *b)
{
    double mine = 0, all;
    for (long at = 0; at < plane(s) * s->planes; at++)
        mine += a[at] * b[at];
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static void exchange_planes(const struct slab *s, double *v)
{
    const int below = own_rank > 0 ? own_rank - 1 : MPI_PROC_NULL;
    const int above = own_rank < all_ranks - 1 ? own_rank + 1 : MPI_PROC_NULL;
    const int count = (int)plane(s);
    MPI_Request requests[4];
    MPI_Irecv(v - plane(s), count, MPI_DOUBLE, below, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(v + plane(s) * s->planes, count, MPI_DOUBLE, above, 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(v, count, MPI_DOUBLE, below, 0, MPI_COMM_WORLD, &requests[2]);
    MPI_Isend(v + plane(s) * (s->planes - 1), count, MPI_DOUBLE, above, 0, MPI_COMM_WORLD, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
}

/* out = A v */
static void apply(const struct slab *s, double *v, double *out)
{
    const long n = s->n;
    exchange_planes(s, v);
    for (long z = 0; z < s->planes; z++)
        for (long y = 0; y < n; y++) {
            const double *row = v + (z * n + y) * n;
            double *to = out + (z * n + y) * n;
            for (long x = 0; x < n; x++)
                to[x] = 6 * row[x] - row[x - plane(s)] - row[x + plane(s)];
            for (long x = 1; x < n; x++)
                to[x] -= row[x - 1];
            for (long x = 0; x < n - 1; x++)
                to[x] -= row[x + 1];
            if (y > 0)
                for (long x = 0; x < n; x++)
                    to[x] -= row[x - n];
            if (y < n - 1)
                for (long x = 0; x < n; x++)
                    to[x] -= row[x + n];
        }
}

/* A number between -1 and 1 that depends on the unknown's number alone. */
static double right_side(uint64_t number)
{
    number = (number + 1) * 0x9e3779b97f4a7c15u;
    number ^= number >> 29;
    number *= 0xd6e8feb86659fd93u;
    return (double)(int64_t)number / 9223372036854775808.0;
}

/* Solves A x = b; x is 0 at first. */
static void solve(const struct slab *s, const double *b, double *x)
{
    const long cells = plane(s) * s->planes;
    double *r = vector(s), *p = vector(s), *q = vector(s);
    for (long at = 0; at < cells; at++)
        r[at] = p[at] = b[at];
    double rr = dot(s, r, r);
    for (long iteration = 0; iteration < ITERATIONS_PER_POINT * s->n; iteration++) {
        apply(s, p, q);
        const double alpha = rr / dot(s, p, q);
        for (long at = 0; at < cells; at++) {
            x[at] += alpha * p[at];
            r[at] -= alpha * q[at];
        }
        const double before = rr;
        rr = dot(s, r, r);
        for (long at = 0; at < cells; at++)
            p[at] = r[at] + rr / before * p[at];
    }
    free_vector(s, r);
    free_vector(s, p);
    free_vector(s, q);
}

/* |b - A x| / |b| */
static double residual(const struct slab *s, const double *b, double *x)
{
    double *r = vector(s);
    apply(s, x, r);
    for (long at = 0; at < plane(s) * s->planes; at++)
        r[at] = b[at] - r[at];
    const double ratio = sqrt(dot(s, r, r) / dot(s, b, b));
    free_vector(s, r);
    return ratio;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &all_ranks);
    const long n = argc == 3 ? atol(argv[1]) : 0;
    const long solves = argc == 3 ? atol(argv[2]) : 0;
    if (n < all_ranks || n > 4096 || solves < 1) {
        fprintf(stderr, "usage: cg POINTS SOLVES, at least a point for each rank\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const long from = n * own_rank / all_ranks;
    const struct slab s = {n, n * (own_rank + 1) / all_ranks - from, from};
    double *b = vector(&s);
    for (long at = 0; at < plane(&s) * s.planes; at++)
        b[at] = right_side((uint64_t)(s.from * plane(&s) + at));
    double took = 0, worst = 0, slowest;
    for (long at = 0; at < solves; at++) {
        double *x = vector(&s);
        MPI_Barrier(MPI_COMM_WORLD);
        const double began = MPI_Wtime();
        solve(&s, b, x);
        took += MPI_Wtime() - began;
        const double off = residual(&s, b, x);
        /* fmax would ignore a NaN. */
        worst = off <= worst ? worst : off;
        free_vector(&s, x);
    }
    MPI_Reduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    free_vector(&s, b);
    if (own_rank == 0)
        printf("seconds=%.6f check=%s residual=%g\n", slowest, worst <= TOLERANCE ? "ok" : "wrong", worst);
    MPI_Finalize();
    return 0;
}
