/*
 * pagerank.c: personalised PageRank of a graph. MPI_Iallgather gathers vectors while other vectors are computed.
 *
 *   mpicc -O2 -ffp-contract=off pagerank.c -o pagerank
 *   mpirun -n 4 ./pagerank graph.mtx
 *   mpirun -n 4 ./pagerank --generate 524288 16 1
 *
 * The graph is read from a Matrix Market file (coordinate; real, integer or pattern; general or symmetric), or is
 * generated. An entry in row r and column c is a link from r to c. Each rank owns a block of consecutive rows of each
 * of the K vectors. An iteration treats the vectors in turn: it waits for the whole of vector k, multiplies its rows,
 * starts the gather of the result, and goes on with vector k + 1. So up to K - 1 gathers overlap with computing.
 *
 * Every sum is taken in the order of the file, whatever the number of ranks. So any two runs on the same graph agree to
 * the last bit, which the digest at the end shows. pagerank.py computes the same bits.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <mpi.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *matrix; /* NULL: generate */
    const char *write;
    int64_t rows, links, seed;
    int vectors, iterations, core; /* -1: any core */
    double damping;
    bool json;
};

/* Links as they were read, from `source` to `target`. */
struct links {
    int64_t rows, count, room;
    int32_t *source, *target;
    double *weight;
};

/* The rows of the transposed, normalised matrix that this rank owns, and the nodes without links. */
struct share {
    int64_t rows, block, first, own, entries;
    int64_t *start;
    int32_t *column;
    double *value;
    int64_t dangling_count;
    int32_t *dangling;
};

static int rank, ranks;
static char problem[512];

static bool __attribute__((format(printf, 1, 2))) fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem, sizeof problem, format, arguments);
    va_end(arguments);
    return false;
}

/* Ends the program on all ranks, in order, if `good` is false on any rank. The lowest such rank prints the reason. */
static void require_all(bool good)
{
    int mine = good ? ranks : rank, first;
    MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (first == ranks)
        return;
    if (rank == first)
        fprintf(stderr, "pagerank: %s\n", problem);
    MPI_Finalize();
    exit(1);
}

/* ---- the graph ---- */

static bool add_link(struct links *links, int64_t source, int64_t target, double weight)
{
    if (links->count == links->room) {
        int64_t room = links->room == 0 ? 1024 : links->room * 2;
        int32_t *sources = realloc(links->source, (size_t)room * sizeof *sources);
        links->source = sources != NULL ? sources : links->source;
        int32_t *targets = realloc(links->target, (size_t)room * sizeof *targets);
        links->target = targets != NULL ? targets : links->target;
        double *weights = realloc(links->weight, (size_t)room * sizeof *weights);
        links->weight = weights != NULL ? weights : links->weight;
        if (sources == NULL || targets == NULL || weights == NULL)
            return fail("no memory for %" PRId64 " links", room);
        links->room = room;
    }
    links->source[links->count] = (int32_t)source;
    links->target[links->count] = (int32_t)target;
    links->weight[links->count++] = weight;
    return true;
}

static uint64_t splitmix64(uint64_t at)
{
    at += 0x9e3779b97f4a7c15u;
    at = (at ^ (at >> 30)) * 0xbf58476d1ce4e5b9u;
    at = (at ^ (at >> 27)) * 0x94d049bb133111ebu;
    return at ^ (at >> 31);
}

/* Each node links to `links` random nodes; about one node in 64 links to none. */
static bool generate(const struct options *options, struct links *links)
{
    bool good = true;
    links->rows = options->rows;
    for (int64_t node = 0; good && node < options->rows; node++) {
        uint64_t own = splitmix64((uint64_t)options->seed ^ splitmix64((uint64_t)node));
        for (int64_t i = 0; good && own % 64 != 0 && i < options->links; i++)
            good = add_link(links, node, (int64_t)(splitmix64(own + (uint64_t)i) % (uint64_t)options->rows), 1.0);
    }
    return good;
}

struct reader {
    const char *path;
    FILE *file;
    int64_t line;
    bool pattern, symmetric;
    char text[1024];
};

/* The next line that is neither empty nor a comment; false at the end of the file. */
static bool next_line(struct reader *reader)
{
    while (fgets(reader->text, sizeof reader->text, reader->file) != NULL) {
        reader->line++;
        const char *at = reader->text + strspn(reader->text, " \t\r\n");
        if (*at != '\0' && *at != '%')
            return true;
        while (strchr(reader->text, '\n') == NULL && fgets(reader->text, sizeof reader->text, reader->file) != NULL)
            continue; /* the rest of a long comment */
    }
    return false;
}

static bool bad_line(const struct reader *reader, const char *what)
{
    return fail("%s:%" PRId64 ": %s", reader->path, reader->line, what);
}

static bool read_banner(struct reader *reader)
{
    char object[64] = "", format[64] = "", field[64] = "", symmetry[64] = "";
    reader->line = 1;
    if (fgets(reader->text, sizeof reader->text, reader->file) == NULL)
        return bad_line(reader, "the file is empty");
    for (char *at = reader->text; *at != '\0'; at++)
        *at = (char)tolower((unsigned char)*at);
    if (sscanf(reader->text, "%%%%matrixmarket %63s %63s %63s %63s", object, format, field, symmetry) != 4)
        return bad_line(reader, "expected \"%%MatrixMarket matrix coordinate FIELD SYMMETRY\"");
    if (strcmp(object, "matrix") != 0 || strcmp(format, "coordinate") != 0)
        return bad_line(reader, "only \"matrix coordinate\" can be read");
    reader->pattern = strcmp(field, "pattern") == 0;
    reader->symmetric = strcmp(symmetry, "symmetric") == 0;
    if (!reader->pattern && strcmp(field, "real") != 0 && strcmp(field, "integer") != 0)
        return bad_line(reader, "the field must be real, integer or pattern");
    if (!reader->symmetric && strcmp(symmetry, "general") != 0)
        return bad_line(reader, "the symmetry must be general or symmetric");
    return true;
}

/* Removes a number from the front of the text. */
static bool read_integer(char **text, int64_t *number)
{
    char *end;
    errno = 0;
    *number = strtoll(*text, &end, 10);
    bool good = end != *text && errno == 0 && (*end == '\0' || isspace((unsigned char)*end));
    *text = end;
    return good;
}

static bool at_end(const char *text)
{
    return text[strspn(text, " \t\r\n")] == '\0';
}

static bool read_sizes(struct reader *reader, int64_t *rows, int64_t *entries)
{
    int64_t columns;
    if (!next_line(reader))
        return bad_line(reader, "the file ends before the line of sizes");
    char *text = reader->text;
    if (!read_integer(&text, rows) || !read_integer(&text, &columns) || !read_integer(&text, entries) || !at_end(text))
        return bad_line(reader, "expected ROWS COLUMNS ENTRIES");
    if (*rows != columns)
        return bad_line(reader, "the matrix of a graph is square, this one is not");
    if (*rows < 1 || *rows > INT32_MAX || *entries < 0)
        return bad_line(reader, "ROWS must lie in 1 .. 2147483647 and ENTRIES be at least 0");
    return true;
}

static bool read_entry(struct reader *reader, struct links *links)
{
    int64_t row, column;
    double weight = 1.0;
    char *text = reader->text, *end;
    if (strchr(text, '\n') == NULL && !feof(reader->file))
        return bad_line(reader, "the line is too long");
    if (!read_integer(&text, &row) || !read_integer(&text, &column))
        return bad_line(reader, "expected ROW COLUMN");
    if (!reader->pattern) {
        weight = strtod(text, &end);
        if (end == text)
            return bad_line(reader, "the value is missing or not a number");
        text = end;
    }
    if (!at_end(text))
        return bad_line(reader, "there is more on the line than an entry");
    if (row < 1 || row > links->rows || column < 1 || column > links->rows)
        return bad_line(reader, "the row or column lies outside the matrix");
    if (!(weight >= 0.0) || isinf(weight))
        return bad_line(reader, "PageRank needs finite values of at least 0");
    if (!add_link(links, row - 1, column - 1, weight))
        return false;
    return !reader->symmetric || row == column || add_link(links, column - 1, row - 1, weight);
}

static bool read_matrix(const char *path, struct links *links)
{
    struct reader reader = {.path = path, .file = fopen(path, "r")};
    int64_t entries = 0, read = 0;
    if (reader.file == NULL)
        return fail("cannot open %s: %s", path, strerror(errno));
    bool good = read_banner(&reader) && read_sizes(&reader, &links->rows, &entries);
    for (; good && read < entries; read++) {
        if (!next_line(&reader))
            good = fail("%s:%" PRId64 ": the file ends after %" PRId64 " of %" PRId64 " entries", path, reader.line, read,
                        entries);
        else
            good = read_entry(&reader, links);
    }
    if (good && next_line(&reader))
        good = bad_line(&reader, "there are more entries than the line of sizes says");
    if (good && ferror(reader.file))
        good = fail("cannot read %s: %s", path, strerror(errno));
    fclose(reader.file);
    return good;
}

static bool write_matrix(const char *path, const struct links *links)
{
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return fail("cannot write %s: %s", path, strerror(errno));
    fprintf(file, "%%%%MatrixMarket matrix coordinate real general\n%" PRId64 " %" PRId64 " %" PRId64 "\n", links->rows,
            links->rows, links->count);
    for (int64_t i = 0; i < links->count; i++)
        fprintf(file, "%d %d %.17g\n", links->source[i] + 1, links->target[i] + 1, links->weight[i]);
    bool good = ferror(file) == 0;
    good = fclose(file) == 0 && good;
    return good || fail("cannot write %s: %s", path, strerror(errno));
}

/* ---- the share of this rank ---- */

static bool find_dangling(struct share *share, const double *out)
{
    share->dangling = malloc((size_t)share->rows * sizeof *share->dangling);
    if (share->dangling == NULL)
        return fail("no memory for %" PRId64 " nodes", share->rows);
    for (int64_t node = 0; node < share->rows; node++)
        if (out[node] == 0.0)
            share->dangling[share->dangling_count++] = (int32_t)node;
    return true;
}

/* Stores rows in the order of nodes, and the entries of a row in the order of the file. */
static bool build_rows(struct share *share, const struct links *links, const double *out)
{
    share->start = calloc((size_t)share->own + 2, sizeof *share->start);
    if (share->start == NULL)
        return fail("no memory for %" PRId64 " rows", share->own);
    int64_t *next = share->start + 1; /* where the row's next entry goes, once summed up; its start when done */
    for (int64_t i = 0; i < links->count; i++) {
        int64_t row = links->target[i] - share->first;
        if (row >= 0 && row < share->own && links->weight[i] != 0.0)
            next[row + 1]++;
    }
    for (int64_t row = 0; row < share->own; row++)
        next[row + 1] += next[row];
    share->entries = next[share->own];
    share->column = malloc((size_t)(share->entries + 1) * sizeof *share->column);
    share->value = malloc((size_t)(share->entries + 1) * sizeof *share->value);
    if (share->column == NULL || share->value == NULL)
        return fail("no memory for %" PRId64 " entries", share->entries);
    for (int64_t i = 0; i < links->count; i++) {
        int64_t row = links->target[i] - share->first;
        if (row < 0 || row >= share->own || links->weight[i] == 0.0)
            continue;
        share->column[next[row]] = links->source[i];
        share->value[next[row]++] = links->weight[i] / out[links->source[i]];
    }
    return true;
}

static bool build_share(const struct links *links, struct share *share)
{
    share->rows = links->rows;
    share->block = (links->rows + ranks - 1) / ranks;
    share->first = share->block * rank < share->rows ? share->block * rank : share->rows;
    share->own = share->rows - share->first < share->block ? share->rows - share->first : share->block;
    double *out = calloc((size_t)links->rows, sizeof *out);
    if (out == NULL)
        return fail("no memory for %" PRId64 " nodes", links->rows);
    for (int64_t i = 0; i < links->count; i++)
        out[links->source[i]] += links->weight[i];
    bool good = find_dangling(share, out) && build_rows(share, links, out);
    free(out);
    return good;
}

static void free_share(struct share *share)
{
    free(share->start);
    free(share->column);
    free(share->value);
    free(share->dangling);
}

/* ---- the iteration ---- */

/* Vector k jumps to the nodes with number modulo `vectors` equal to k. */
static double jump(const struct share *share, int64_t node, int k, int vectors)
{
    return node % vectors == k ? 1.0 / (double)((share->rows - k + vectors - 1) / vectors) : 0.0;
}

static void multiply(const struct share *share, const struct options *options, int k, const double *whole, double *part)
{
    double lost = 0.0;
    for (int64_t i = 0; i < share->dangling_count; i++)
        lost += whole[share->dangling[i]];
    double back = options->damping * lost + (1.0 - options->damping);
    for (int64_t row = 0; row < share->own; row++) {
        double sum = 0.0;
        for (int64_t i = share->start[row]; i < share->start[row + 1]; i++)
            sum += share->value[i] * whole[share->column[i]];
        part[row] = options->damping * sum + back * jump(share, share->first + row, k, options->vectors);
    }
}

struct run {
    double **whole, **part; /* by vector: all nodes (padded to whole blocks), the own block */
    MPI_Request *requests;
    double *iteration_s; /* by iteration, of this rank */
    double total_s, mpi_s;
};

static bool prepare(const struct share *share, const struct options *options, struct run *run)
{
    size_t vectors = (size_t)options->vectors, block = (size_t)share->block;
    run->whole = calloc(vectors, sizeof *run->whole);
    run->part = calloc(vectors, sizeof *run->part);
    run->requests = calloc(vectors, sizeof *run->requests);
    run->iteration_s = calloc((size_t)options->iterations, sizeof *run->iteration_s);
    bool good = run->whole != NULL && run->part != NULL && run->requests != NULL && run->iteration_s != NULL;
    for (size_t k = 0; good && k < vectors; k++) {
        run->whole[k] = calloc(block * (size_t)ranks, sizeof(double));
        run->part[k] = calloc(block, sizeof(double));
        run->requests[k] = MPI_REQUEST_NULL;
        good = run->whole[k] != NULL && run->part[k] != NULL;
        for (int64_t node = 0; good && node < share->rows; node++)
            run->whole[k][node] = jump(share, node, (int)k, options->vectors);
    }
    return good || fail("no memory for %d vectors of %" PRId64 " nodes", options->vectors, share->rows);
}

static void iterate(const struct share *share, const struct options *options, struct run *run)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime(), turned = began;
    for (int turn = 0; turn < options->iterations; turn++) {
        for (int k = 0; k < options->vectors; k++) {
            double before = MPI_Wtime();
            MPI_Wait(&run->requests[k], MPI_STATUS_IGNORE);
            run->mpi_s += MPI_Wtime() - before;
            multiply(share, options, k, run->whole[k], run->part[k]);
            before = MPI_Wtime();
            MPI_Iallgather(run->part[k], (int)share->block, MPI_DOUBLE, run->whole[k], (int)share->block, MPI_DOUBLE,
                           MPI_COMM_WORLD, &run->requests[k]);
            run->mpi_s += MPI_Wtime() - before;
        }
        double now = MPI_Wtime();
        run->iteration_s[turn] = now - turned;
        turned = now;
    }
    double before = MPI_Wtime();
    MPI_Waitall(options->vectors, run->requests, MPI_STATUSES_IGNORE);
    run->mpi_s += MPI_Wtime() - before;
    run->total_s = MPI_Wtime() - began;
}

static void release(const struct options *options, struct run *run)
{
    for (int k = 0; k < options->vectors; k++) {
        free(run->whole[k]);
        free(run->part[k]);
    }
    free(run->whole);
    free(run->part);
    free(run->requests);
    free(run->iteration_s);
}

/* ---- results ---- */

/* CRC-32 as in zlib. */
static uint32_t crc32(uint32_t crc, const void *bytes, size_t count)
{
    static uint32_t table[256];
    for (uint32_t at = 0; table[255] == 0 && at < 256; at++) {
        table[at] = at;
        for (int bit = 0; bit < 8; bit++)
            table[at] = table[at] & 1 ? table[at] >> 1 ^ 0xedb88320u : table[at] >> 1;
    }
    crc = ~crc;
    for (const unsigned char *at = bytes; count > 0; at++, count--)
        crc = crc >> 8 ^ table[(crc ^ *at) & 255];
    return ~crc;
}

static int by_size(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static bool digest_agreed(const struct share *share, const struct options *options, const struct run *run,
                          uint32_t *digest)
{
    uint32_t least, most;
    *digest = 0;
    for (int k = 0; k < options->vectors; k++)
        *digest = crc32(*digest, run->whole[k], (size_t)share->rows * sizeof(double));
    MPI_Allreduce(digest, &least, 1, MPI_UINT32_T, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(digest, &most, 1, MPI_UINT32_T, MPI_MAX, MPI_COMM_WORLD);
    return least == most || fail("ranks disagree about the result: digests %08x .. %08x", least, most);
}

/* Prints the results; times are the slowest rank's. */
static void report(const struct share *share, const struct options *options, struct run *run, uint32_t digest)
{
    double mine[2] = {run->total_s, run->mpi_s}, most[2], mass = 0.0;
    int64_t entries = 0, top = 0;
    double *slowest = calloc((size_t)options->iterations, sizeof *slowest);
    MPI_Reduce(mine, most, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(run->iteration_s, slowest, options->iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&share->entries, &entries, 1, MPI_INT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    for (int64_t node = 0; node < share->rows; node++) {
        mass += run->whole[0][node];
        top = run->whole[0][node] > run->whole[0][top] ? node : top;
    }
    if (rank == 0) {
        qsort(slowest, (size_t)options->iterations, sizeof *slowest, by_size);
        double iteration_ms = most[0] * 1e3 / options->iterations, mpi_ms = most[1] * 1e3 / options->iterations;
        double median_ms = slowest[options->iterations / 2] * 1e3;
        printf("graph       %" PRId64 " nodes, %" PRId64 " links, %d vectors, %d ranks, %" PRId64 " bytes per gather\n",
               share->rows, entries, options->vectors, ranks, share->block * (int64_t)sizeof(double));
        printf("iteration   %.3f ms mean, %.3f ms median; in MPI %.3f ms\n", iteration_ms, median_ms, mpi_ms);
        printf("result      node %" PRId64 " ranks first in vector 0, mass %.12f, digest %08x\n", top + 1, mass, digest);
        if (options->json)
            printf("{\"program\":\"pagerank\",\"ranks\":%d,\"rows\":%" PRId64 ",\"nonzeros\":%" PRId64 ",\"vectors\":%d,"
                   "\"iterations\":%d,\"bytes_per_rank\":%" PRId64 ",\"time_s\":%.6f,\"iteration_ms\":%.6f,"
                   "\"iteration_median_ms\":%.6f,\"mpi_ms_per_iteration\":%.6f,\"top\":%" PRId64
                   ",\"mass\":%.15f,\"digest\":\"%08x\"}\n",
                   ranks, share->rows, entries, options->vectors, options->iterations,
                   share->block * (int64_t)sizeof(double), most[0], iteration_ms, median_ms, mpi_ms, top + 1, mass,
                   digest);
    }
    free(slowest);
}

/* ---- options ---- */

static const char usage[] =
    "usage: pagerank [MATRIX.mtx | --generate NODES LINKS_PER_NODE SEED] [--write-matrix FILE] [--vectors K]\n"
    "                [--iterations I] [--damping D] [--core N] [--json]";

static bool parse_number(char **arguments, int count, int *at, int64_t least, int64_t most, int64_t *number)
{
    char *text = *at + 1 < count ? arguments[++*at] : "", *start = text;
    if (!read_integer(&text, number) || *text != '\0' || *number < least || *number > most)
        return fail("a whole number from %" PRId64 " to %" PRId64 " is wanted after %s, not \"%s\"\n%s", least, most,
                    arguments[start[0] == '\0' ? *at : *at - 1], start, usage);
    return true;
}

static bool parse_damping(char **arguments, int count, int *at, double *damping)
{
    char *text = *at + 1 < count ? arguments[++*at] : "", *end;
    *damping = strtod(text, &end);
    if (end == text || *end != '\0' || !(*damping >= 0.0 && *damping < 1.0))
        return fail("--damping wants a number from 0 up to but without 1, not \"%s\"\n%s", text, usage);
    return true;
}

static bool parse_options(int count, char **arguments, struct options *options)
{
    int64_t vectors = options->vectors, iterations = options->iterations, core = options->core;
    bool good = true;
    for (int at = 1; good && at < count; at++) {
        const char *name = arguments[at];
        if (strcmp(name, "--generate") == 0)
            good = parse_number(arguments, count, &at, 1, INT32_MAX, &options->rows) &&
                   parse_number(arguments, count, &at, 0, 1 << 20, &options->links) &&
                   parse_number(arguments, count, &at, 0, INT64_MAX, &options->seed);
        else if (strcmp(name, "--vectors") == 0)
            good = parse_number(arguments, count, &at, 1, 1024, &vectors);
        else if (strcmp(name, "--iterations") == 0)
            good = parse_number(arguments, count, &at, 1, 1000000, &iterations);
        else if (strcmp(name, "--core") == 0)
            good = parse_number(arguments, count, &at, 0, CPU_SETSIZE - 1, &core);
        else if (strcmp(name, "--damping") == 0)
            good = parse_damping(arguments, count, &at, &options->damping);
        else if (strcmp(name, "--write-matrix") == 0 && at + 1 < count)
            options->write = arguments[++at];
        else if (strcmp(name, "--json") == 0)
            options->json = true;
        else if (name[0] != '-' && options->matrix == NULL)
            options->matrix = name;
        else
            good = fail("cannot make sense of %s\n%s", name, usage);
    }
    options->vectors = (int)vectors;
    options->iterations = (int)iterations;
    options->core = (int)core;
    return good;
}

/* Binds this thread alone; other cores are left to threads that MPI_Init has started, and to processes that move
 * data. */
static bool compute_on(int core)
{
    cpu_set_t cores;
    if (core < 0)
        return true;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    return sched_setaffinity(0, sizeof cores, &cores) == 0 || fail("--core %d: %s", core, strerror(errno));
}

int main(int argc, char **argv)
{
    struct options options = {
        .rows = 524288, .links = 16, .seed = 1, .vectors = 4, .iterations = 20, .core = -1, .damping = 0.85};
    struct links links = {.rows = 0};
    struct share share = {.rows = 0};
    struct run run = {.mpi_s = 0.0};
    uint32_t digest;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    require_all(parse_options(argc, argv, &options));
    require_all(options.matrix != NULL ? read_matrix(options.matrix, &links) : generate(&options, &links));
    require_all(options.write == NULL || rank != 0 || write_matrix(options.write, &links));
    require_all(options.vectors <= links.rows ||
                fail("%d vectors are more than the graph has nodes", options.vectors));
    require_all(build_share(&links, &share));
    free(links.source);
    free(links.target);
    free(links.weight);
    require_all(share.block <= INT32_MAX / (int64_t)sizeof(double) ||
                fail("a block of %" PRId64 " rows is too large; take more ranks", share.block));
    require_all(prepare(&share, &options, &run));
    require_all(compute_on(options.core));
    iterate(&share, &options, &run);
    require_all(digest_agreed(&share, &options, &run, &digest));
    report(&share, &options, &run, digest);
    release(&options, &run);
    free_share(&share);
    MPI_Finalize();
    return 0;
}
