/*
 * remembered.c: results of earlier runs on this cluster for classes of calls, in a file of the user.
 *
 * Rank 0 reads the file in MPI_Init for all ranks and writes it in MPI_Finalize, if something was tried. The README
 * describes the format. A file of another version or cluster, a damaged file, or one that is not the user's alone stays
 * untouched: rank 0 prints one sentence, and the run goes on as without a file.
 *
 * Invariants: all ranks remember the same. No link is followed in the last two parts of the path. The file is replaced
 * at once and whole, or not at all.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim.h"

#define FORMAT "outboard-choice\t3"
#define LINES_MOST 4096
#define BYTES_MOST (256 * 1024)
#define FIELDS 10
/* The shortest time that a launch reports. */
#define MICROSECONDS_LEAST 1e-3
#define NAMES_BYTES 512
#define PATH_BYTES 4096

struct lines {
    struct remembered *line;
    int count;
};

static struct lines known; /* on all ranks */
/* Only on rank 0: */
static bool refused;       /* there is a file that must not be used */
static char folder[PATH_BYTES], file[PATH_BYTES];
static char cluster[17], names[NAMES_BYTES];
static int hosts;

static void __attribute__((format(printf, 1, 2))) refuse(const char *format, ...)
{
    char why[SHIM_SENTENCE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    if (!refused)
        fprintf(stderr, "outboard: what runs learn about collectives is not kept in %s/%s: %s\n", folder, file, why);
    refused = true;
}

/* ---- the name of the cluster ---- */

static uint64_t hashed(uint64_t hash, const char *text)
{
    for (;; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u; /* FNV-1a, including the closing zero */
        if (*text == '\0')
            return hash;
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sets the name of the cluster from the names of all hosts, on rank 0; false without memory. */
static bool name_cluster(void)
{
    char version[32];
    uint64_t hash = 0xcbf29ce484222325u;
    size_t length = 0;
    int ranks;
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char **of_hosts = scratch_take((size_t)ranks * sizeof *of_hosts);
    if (of_hosts == NULL)
        return false;
    hosts = 0;
    for (int rank = 0; rank < ranks; rank++)
        if (hosts_first(rank))
            of_hosts[hosts++] = hosts_name(rank);
    qsort(of_hosts, (size_t)hosts, sizeof *of_hosts, by_name);
    for (int host = 0; host < hosts; host++) {
        hash = hashed(hash, of_hosts[host]);
        size_t more = strlen(of_hosts[host]) + 1;
        if (length + more < sizeof names)
            length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", length == 0 ? "" : ",",
                                       of_hosts[host]);
    }
    for (char *at = names; *at != '\0'; at++)
        if ((unsigned char)*at <= ' ')
            *at = '_'; /* a blank would break the line of the file */
    scratch_give(of_hosts);
    snprintf(version, sizeof version, "%d.%d.%d", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION);
    snprintf(cluster, sizeof cluster, "%016" PRIx64, hashed(hash, version));
    return true;
}

/* ---- the place of the file ---- */

/* False leaves `refused`. With `make` the folders are made. */
static bool usual_folder(bool make)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *house = getenv("HOME");
    bool given = cache != NULL && cache[0] == '/';
    snprintf(folder, sizeof folder, "(unknown)");
    if (!given && (house == NULL || house[0] != '/')) {
        refuse("neither XDG_CACHE_HOME nor HOME is set; set OUTBOARD_CHOICE_FILE");
        return false;
    }
    const char *parts[] = {given ? cache : house, given ? "" : "/.cache", "/outboard", "/choice"};
    int length = 0;
    for (int part = 0; part < 4; part++) {
        length += snprintf(folder + length, sizeof folder - (size_t)length, "%s", parts[part]);
        if (length >= (int)sizeof folder) {
            refuse("the path is too long; set OUTBOARD_CHOICE_FILE");
            return false;
        }
        if (make && (given || part > 0) && mkdir(folder, 0700) != 0 && errno != EEXIST) {
            refuse("cannot make %s: %s", folder, strerror(errno));
            return false;
        }
    }
    return true;
}

static bool find_place(bool make)
{
    const char *path = getenv("OUTBOARD_CHOICE_FILE"), *last;
    if (path == NULL || path[0] == '\0') {
        snprintf(file, sizeof file, "%s.tsv", cluster);
        return usual_folder(make);
    }
    last = strrchr(path, '/');
    snprintf(file, sizeof file, "%s", last == NULL ? path : last + 1);
    snprintf(folder, sizeof folder, "%.*s", last == NULL ? 1 : (int)(last - path), last == NULL ? "." : path);
    if (folder[0] == '\0')
        snprintf(folder, sizeof folder, "/");
    return true;
}

/* Whether no other user may have written the file. */
static bool is_private(const struct stat *status, const char *what)
{
    if (status->st_uid != geteuid())
        refuse("the %s belongs to another user", what);
    else if ((status->st_mode & (S_IWGRP | S_IWOTH)) != 0)
        refuse("others may write to the %s; take that away with chmod go-w", what);
    else
        return true;
    return false;
}

/* The folder, or -1 if there is none or none that may be used. */
static int open_folder(bool make)
{
    struct stat status;
    if (!find_place(make))
        return -1;
    int at = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (at < 0) {
        if (make || errno != ENOENT)
            refuse("cannot open the folder: %s", strerror(errno));
        return -1;
    }
    if (fstat(at, &status) == 0 && is_private(&status, "folder"))
        return at;
    close(at);
    return -1;
}

/* ---- reading ---- */

static int open_file(int at, size_t *bytes)
{
    struct stat status;
    int in = openat(at, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (in < 0) {
        if (errno == ELOOP)
            refuse("it is a symbolic link");
        else if (errno != ENOENT)
            refuse("%s", strerror(errno));
        return -1;
    }
    if (fstat(in, &status) != 0 || !S_ISREG(status.st_mode))
        refuse("it is no plain file");
    else if (status.st_size > BYTES_MOST)
        refuse("it has more than %d bytes; remove it", BYTES_MOST);
    else if (is_private(&status, "file")) {
        *bytes = (size_t)status.st_size;
        return in;
    }
    close(in);
    return -1;
}

/* The whole file with a zero behind it, as scratch; NULL if there is none that may be used. */
static char *read_file(int at)
{
    size_t length = 0, most = 0;
    int in = open_file(at, &most);
    char *text = in < 0 ? NULL : scratch_take(most + 1);
    ssize_t part = text == NULL ? -1 : 1;
    while (part > 0 && length < most) {
        part = read(in, text + length, most - length);
        length += part > 0 ? (size_t)part : 0;
    }
    if (in >= 0)
        close(in);
    if (part < 0) {
        if (in >= 0)
            refuse("it cannot be read");
        scratch_give(text);
        return NULL;
    }
    text[length] = '\0';
    if (strlen(text) == length && (length == 0 || text[length - 1] == '\n'))
        return text;
    refuse("it is damaged; remove it");
    scratch_give(text);
    return NULL;
}

static int index_of(const char *const *all, int count, const char *word)
{
    for (int at = 0; at < count; at++)
        if (strcmp(all[at], word) == 0)
            return at;
    return -1;
}

static bool parse_number(const char *word, double least, double most, double *number)
{
    char *end;
    *number = strtod(word, &end);
    return word[0] >= '0' && word[0] <= '9' && *end == '\0' && *number >= least && *number <= most;
}

/* Fields: collective, form, bits of the bytes, hosts, ranks per host, microseconds natively and offloaded, launches,
 * unfinished launches, calls. */
static bool parse_line(char *text, struct remembered *line)
{
    char *field[FIELDS], *rest = text;
    double number[FIELDS] = {0};
    int fields = 0;
    while (fields < FIELDS && rest != NULL)
        field[fields++] = strsep(&rest, "\t");
    if (fields != FIELDS || rest != NULL)
        return false;
    static const double least[FIELDS] = {0, 0, 0, 1, 1, 0, 0, 0, 0, 0};
    static const double most[FIELDS] = {0, 0, 64, 1e9, 1e9, 1e15, 1e15, 1e9, 1e9, 1e18};
    int collective = index_of(collective_names, COLLECTIVES_KNOWN, field[0]);
    int form = index_of(form_names, PERSISTENT, field[1]);
    bool unknown = strcmp(field[2], "-") == 0;
    if (collective < 0 || form < 0)
        return false;
    for (int at = unknown ? 3 : 2; at < FIELDS; at++)
        if (!parse_number(field[at], least[at], most[at], &number[at]))
            return false;
    if (number[7] > 0 ? fmin(number[5], number[6]) < MICROSECONDS_LEAST : fmax(number[5], number[6]) > 0)
        return false; /* times must be there if and only if launches have been counted */
    line->key = class_key(collective, form, unknown ? SIZE_UNKNOWN : (unsigned)number[2]);
    line->place = (struct place){(int)number[3], (int)number[4]};
    line->learnt = (struct learnt){{number[5] * 1e-6, number[6] * 1e-6}, (unsigned)number[7], (unsigned)number[8]};
    line->calls = (uint64_t)number[9];
    return true;
}

/* Whether the first line belongs to this version and cluster. */
static bool parse_head(char *head)
{
    char expected[128];
    int length = snprintf(expected, sizeof expected, FORMAT "\t%s\t%d\t", cluster, hosts);
    int version = (int)strlen(FORMAT);
    if (strncmp(head, FORMAT "\t", (size_t)version + 1) != 0)
        refuse("it is of another version or no such file; remove it");
    else if (strncmp(head, expected, (size_t)length) != 0)
        refuse("it is of another cluster; set OUTBOARD_CHOICE_FILE otherwise or not at all");
    else
        return true;
    return false;
}

static void parse(char *text, struct lines *lines)
{
    char *rest = text;
    size_t most = 0;
    for (const char *end = text; (end = strchr(end, '\n')) != NULL; end++)
        most++;
    lines->line = malloc(most * sizeof *lines->line);
    if (lines->line == NULL || !parse_head(strsep(&rest, "\n")))
        return;
    while (rest != NULL && *rest != '\0') {
        char *line = strsep(&rest, "\n");
        if (lines->count == LINES_MOST || !parse_line(line, &lines->line[lines->count])) {
            refuse("line %d is damaged; remove the file", lines->count + 2);
            lines->count = 0;
            return;
        }
        lines->count++;
    }
}

/* Loads the file, on rank 0. */
static struct lines load(int at)
{
    struct lines lines = {NULL, 0};
    char *text = at < 0 ? NULL : read_file(at);
    if (text != NULL)
        parse(text, &lines);
    scratch_give(text);
    return lines;
}

void remembered_read(void)
{
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && name_cluster()) {
        int at = open_folder(false);
        known = load(at);
        if (at >= 0)
            close(at);
    }
    tree_broadcast(&known.count, sizeof known.count);
    size_t bytes = (size_t)known.count * sizeof *known.line;
    if (rank != 0)
        known.line = malloc(bytes + 1);
    if (tree_least(known.line != NULL || known.count == 0))
        tree_broadcast(known.line, bytes);
    else
        known.count = 0;
}

static struct remembered *find(const struct lines *lines, unsigned key, const struct place *place)
{
    for (int at = 0; at < lines->count; at++) {
        struct remembered *line = &lines->line[at];
        if (line->key == key && same_place(&line->place, place))
            return line;
    }
    return NULL;
}

const struct remembered *remembered_find(unsigned key, const struct place *place)
{
    return find(&known, key, place);
}

/* ---- writing ---- */

static int by_calls(const void *a, const void *b)
{
    uint64_t left = ((const struct remembered *)a)->calls, right = ((const struct remembered *)b)->calls;
    return (left < right) - (left > right);
}

/* Adds the rows of the ledger that were tried; if there are too many lines, the ones with the most calls stay. */
static void merge(struct lines *lines)
{
    int rows = 0;
    for (const struct row *row = ledger_first(); row != NULL; row = row->next)
        rows++;
    struct remembered *room = realloc(lines->line, (size_t)(lines->count + rows + 1) * sizeof *room);
    if (room == NULL)
        return;
    lines->line = room;
    for (const struct row *row = ledger_first(); row != NULL; row = row->next) {
        if (!row->tried || form_of(row->key) == PERSISTENT)
            continue;
        struct remembered *line = find(lines, row->key, &row->place);
        if (line == NULL) {
            line = &lines->line[lines->count++];
            *line = (struct remembered){.key = row->key, .place = row->place};
        }
        line->learnt = row->learnt;
        for (enum way way = 0; way < WAYS; way++)
            line->calls += atomic_load(&row->calls[way]);
    }
    qsort(lines->line, (size_t)lines->count, sizeof *lines->line, by_calls);
    lines->count = lines->count < LINES_MOST ? lines->count : LINES_MOST;
}

/* Microseconds for the file: 0 if no launch has found them, else at least the value that is not read as none. */
static double microseconds(const struct learnt *learnt, enum way way)
{
    return learnt->launches == 0 ? 0 : fmax(learnt->seconds[way] * 1e6, MICROSECONDS_LEAST);
}

/* Writes the text of the file, with as many lines as its limit in bytes allows. */
static size_t print(const struct lines *lines, char *text)
{
    size_t length = (size_t)snprintf(text, BYTES_MOST, FORMAT "\t%s\t%d\t%s\n", cluster, hosts, names);
    for (int at = 0; at < lines->count; at++) {
        const struct remembered *line = &lines->line[at];
        char size[8] = "-";
        if (size_of(line->key) != SIZE_UNKNOWN)
            snprintf(size, sizeof size, "%u", size_of(line->key));
        int more = snprintf(text + length, BYTES_MOST - length, "%s\t%s\t%s\t%d\t%d\t%.3f\t%.3f\t%u\t%u\t%" PRIu64 "\n",
                            collective_names[collective_of(line->key)], form_names[form_of(line->key)], size,
                            line->place.hosts, line->place.ranks_per_host, microseconds(&line->learnt, NATIVE),
                            microseconds(&line->learnt, OFFLOADED), line->learnt.launches, line->learnt.unfinished,
                            line->calls);
        if (more < 0 || length + (size_t)more >= BYTES_MOST)
            break;
        length += (size_t)more;
    }
    return length;
}

static bool write_whole(int to, const char *text, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t part = write(to, text + done, length - done);
        if (part < 0 && errno != EINTR)
            return false;
        done += part > 0 ? (size_t)part : 0;
    }
    return true;
}

/* Writes a draft under another name, then renames it. */
static void replace(int at, const char *text, size_t length)
{
    char draft[64];
    snprintf(draft, sizeof draft, ".draft.%ld.tsv", (long)getpid());
    unlinkat(at, draft, 0); /* may be left by a killed run with this process number */
    int to = openat(at, draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to < 0) {
        refuse("cannot write: %s", strerror(errno));
        return;
    }
    bool written = write_whole(to, text, length);
    written = close(to) == 0 && written;
    if (written && renameat(at, draft, at, file) == 0)
        return;
    refuse("cannot write: %s", strerror(errno));
    unlinkat(at, draft, 0);
}

static bool anything_tried(void)
{
    for (const struct row *row = ledger_first(); row != NULL; row = row->next)
        if (row->tried)
            return true;
    return false;
}

void remembered_write(void)
{
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank != 0 || refused || cluster[0] == '\0' || !anything_tried())
        return;
    int at = open_folder(true);
    if (at < 0)
        return;
    struct lines lines = load(at); /* another run may have ended meanwhile */
    char *text = scratch_take(BYTES_MOST);
    if (!refused && text != NULL) {
        merge(&lines);
        replace(at, text, print(&lines, text));
    }
    scratch_give(text);
    free(lines.line);
    close(at);
}

void remembered_stop(void)
{
    free(known.line);
    known = (struct lines){NULL, 0};
}
