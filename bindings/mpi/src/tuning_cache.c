/*
 * tuning_cache.c: results of earlier runs on this cluster for classes of calls, in a file of the user.
 *
 * Rank 0 reads the file in MPI_Init for all ranks and writes it in MPI_Finalize, if something was tried. The README
 * describes the format. A file of another version or cluster, a damaged file, or one that is not the user's alone stays
 * untouched: rank 0 prints one message, and the run goes on as without a file.
 *
 * Invariants: all ranks have the same results. No link is followed in the last two parts of the path. The file is
 * replaced at once and whole, or not at all.
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

#include "tuning_cache.h"
#include "binding.h"
#include "classes.h"
#include "hosts.h"
#include "scratch.h"
#include "shim.h"
#include "stats.h"
#include "tree.h"
#include "trials.h"

#define FORMAT "outboard-choice\t3"
#define ENTRIES_MAX 4096
#define BYTES_MAX (256 * 1024)
#define FIELDS 10
/* The shortest time that a launch reports. */
#define MICROSECONDS_MIN 1e-3
#define NAMES_BYTES 512
#define PATH_BYTES 4096

struct entries {
    struct tuning_entry *entry;
    int count;
};

static struct entries cached; /* on all ranks */
/* Only on rank 0: */
static bool rejected; /* there is a file that must not be used */
static char folder[PATH_BYTES], file[PATH_BYTES];
static char cluster[17], hostnames[NAMES_BYTES];
static int hosts;

static void __attribute__((format(printf, 1, 2))) reject(const char *format, ...)
{
    char reason[SHIM_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    if (!rejected)
        fprintf(stderr, "outboard: what runs learn about collectives is not kept in %s/%s: %s\n", folder, file, reason);
    rejected = true;
}

/* ---- the name of the cluster ---- */

static uint64_t hash_text(uint64_t hash, const char *text)
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
    uint64_t hash = 0xcbf29ce484222325u;
    size_t length = 0;
    int ranks;
    mpi.Comm_size(MPI_COMM_WORLD, &ranks);
    const char **host_names = scratch_allocate((size_t)ranks * sizeof *host_names);
    if (host_names == NULL)
        return false;
    hosts = 0;
    for (int rank = 0; rank < ranks; rank++)
        if (hosts_first(rank))
            host_names[hosts++] = hosts_name(rank);
    qsort(host_names, (size_t)hosts, sizeof *host_names, by_name);
    for (int host = 0; host < hosts; host++) {
        hash = hash_text(hash, host_names[host]);
        size_t more = strlen(host_names[host]) + 1;
        if (length + more < sizeof hostnames)
            length += (size_t)snprintf(hostnames + length, sizeof hostnames - length, "%s%s", length == 0 ? "" : ",",
                                       host_names[host]);
    }
    for (char *at = hostnames; *at != '\0'; at++)
        if ((unsigned char)*at <= ' ')
            *at = '_'; /* a blank would break the line of the file */
    scratch_free(host_names);
    snprintf(cluster, sizeof cluster, "%016" PRIx64, hash_text(hash, mpi_name));
    return true;
}

/* ---- the path of the file ---- */

/* Sets `folder`; false after a rejection. With `create` the folders are made. */
static bool default_folder(bool create)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool has_cache_home = cache != NULL && cache[0] == '/';
    snprintf(folder, sizeof folder, "(unknown)");
    if (!has_cache_home && (home == NULL || home[0] != '/')) {
        reject("neither XDG_CACHE_HOME nor HOME is set; set OUTBOARD_CHOICE_FILE");
        return false;
    }
    const char *parts[] = {has_cache_home ? cache : home, has_cache_home ? "" : "/.cache", "/outboard", "/choice"};
    int length = 0;
    for (int part = 0; part < 4; part++) {
        length += snprintf(folder + length, sizeof folder - (size_t)length, "%s", parts[part]);
        if (length >= (int)sizeof folder) {
            reject("the path is too long; set OUTBOARD_CHOICE_FILE");
            return false;
        }
        if (create && (has_cache_home || part > 0) && mkdir(folder, 0700) != 0 && errno != EEXIST) {
            reject("cannot make %s: %s", folder, strerror(errno));
            return false;
        }
    }
    return true;
}

static bool find_file(bool create)
{
    const char *path = getenv("OUTBOARD_CHOICE_FILE"), *last;
    if (path == NULL || path[0] == '\0') {
        snprintf(file, sizeof file, "%s.tsv", cluster);
        return default_folder(create);
    }
    last = strrchr(path, '/');
    snprintf(file, sizeof file, "%s", last == NULL ? path : last + 1);
    snprintf(folder, sizeof folder, "%.*s", last == NULL ? 1 : (int)(last - path), last == NULL ? "." : path);
    if (folder[0] == '\0')
        snprintf(folder, sizeof folder, "/");
    return true;
}

/* Whether no other user may have written the file. */
static bool is_private(const struct stat *status, const char *kind)
{
    if (status->st_uid != geteuid())
        reject("the %s belongs to another user", kind);
    else if ((status->st_mode & (S_IWGRP | S_IWOTH)) != 0)
        reject("others may write to the %s; take that away with chmod go-w", kind);
    else
        return true;
    return false;
}

/* The descriptor of the folder, or -1 if there is no usable folder. */
static int open_folder(bool create)
{
    struct stat status;
    if (!find_file(create))
        return -1;
    int at = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (at < 0) {
        if (create || errno != ENOENT)
            reject("cannot open the folder: %s", strerror(errno));
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
            reject("it is a symbolic link");
        else if (errno != ENOENT)
            reject("%s", strerror(errno));
        return -1;
    }
    if (fstat(in, &status) != 0 || !S_ISREG(status.st_mode))
        reject("it is no plain file");
    else if (status.st_size > BYTES_MAX)
        reject("it has more than %d bytes; remove it", BYTES_MAX);
    else if (is_private(&status, "file")) {
        *bytes = (size_t)status.st_size;
        return in;
    }
    close(in);
    return -1;
}

/* The whole file with a zero behind it, as scratch; NULL if there is no usable file. */
static char *read_file(int at)
{
    size_t length = 0, most = 0;
    int in = open_file(at, &most);
    char *text = in < 0 ? NULL : scratch_allocate(most + 1);
    ssize_t part = text == NULL ? -1 : 1;
    while (part > 0 && length < most) {
        part = read(in, text + length, most - length);
        length += part > 0 ? (size_t)part : 0;
    }
    if (in >= 0)
        close(in);
    if (part < 0) {
        if (in >= 0)
            reject("it cannot be read");
        scratch_free(text);
        return NULL;
    }
    text[length] = '\0';
    if (strlen(text) == length && (length == 0 || text[length - 1] == '\n'))
        return text;
    reject("it is damaged; remove it");
    scratch_free(text);
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
static bool parse_line(char *text, struct tuning_entry *entry)
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
    if (number[7] > 0 ? smaller(number[5], number[6]) < MICROSECONDS_MIN : larger(number[5], number[6]) > 0)
        return false; /* times must be there if and only if launches have been counted */
    entry->key = class_key(collective, form, unknown ? SIZE_UNKNOWN : (unsigned)number[2]);
    entry->placement = (struct placement){(int)number[3], (int)number[4]};
    entry->estimate = (struct estimate){{number[5] * 1e-6, number[6] * 1e-6}, (unsigned)number[7], (unsigned)number[8]};
    entry->calls = (uint64_t)number[9];
    return true;
}

/* Whether the first line belongs to this version and cluster. */
static bool parse_head(char *head)
{
    char expected[128];
    int length = snprintf(expected, sizeof expected, FORMAT "\t%s\t%d\t", cluster, hosts);
    int version = (int)strlen(FORMAT);
    if (strncmp(head, FORMAT "\t", (size_t)version + 1) != 0)
        reject("it is of another version or no such file; remove it");
    else if (strncmp(head, expected, (size_t)length) != 0)
        reject("it is of another cluster; set OUTBOARD_CHOICE_FILE otherwise or not at all");
    else
        return true;
    return false;
}

static void parse_file(char *text, struct entries *entries)
{
    char *rest = text;
    size_t most = 0;
    for (const char *end = text; (end = strchr(end, '\n')) != NULL; end++)
        most++;
    entries->entry = malloc(most * sizeof *entries->entry);
    if (entries->entry == NULL || !parse_head(strsep(&rest, "\n")))
        return;
    while (rest != NULL && *rest != '\0') {
        char *entry = strsep(&rest, "\n");
        if (entries->count == ENTRIES_MAX || !parse_line(entry, &entries->entry[entries->count])) {
            reject("line %d is damaged; remove the file", entries->count + 2);
            entries->count = 0;
            return;
        }
        entries->count++;
    }
}

/* Loads the file, on rank 0. */
static struct entries load_file(int at)
{
    struct entries entries = {NULL, 0};
    char *text = at < 0 ? NULL : read_file(at);
    if (text != NULL)
        parse_file(text, &entries);
    scratch_free(text);
    return entries;
}

void tuning_cache_read(void)
{
    int rank;
    mpi.Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && name_cluster()) {
        int at = open_folder(false);
        cached = load_file(at);
        if (at >= 0)
            close(at);
    }
    tree_broadcast(&cached.count, sizeof cached.count);
    size_t bytes = (size_t)cached.count * sizeof *cached.entry;
    if (rank != 0)
        cached.entry = malloc(bytes + 1);
    if (tree_minimum(cached.entry != NULL || cached.count == 0))
        tree_broadcast(cached.entry, bytes);
    else
        cached.count = 0;
}

static struct tuning_entry *find_entry(const struct entries *entries, unsigned key, const struct placement *placement)
{
    for (int at = 0; at < entries->count; at++) {
        struct tuning_entry *entry = &entries->entry[at];
        if (entry->key == key && same_placement(&entry->placement, placement))
            return entry;
    }
    return NULL;
}

const struct tuning_entry *tuning_cache_find(unsigned key, const struct placement *placement)
{
    return find_entry(&cached, key, placement);
}

/* ---- writing ---- */

static int by_calls_descending(const void *a, const void *b)
{
    uint64_t left = ((const struct tuning_entry *)a)->calls, right = ((const struct tuning_entry *)b)->calls;
    return (left < right) - (left > right);
}

/* Adds the classes that were tried; if there are too many entries, the ones with the most calls stay. */
static void add_stats(struct entries *entries)
{
    int added = 0;
    for (const struct class_stats *stats = stats_first(); stats != NULL; stats = stats->next)
        added++;
    struct tuning_entry *larger = realloc(entries->entry, (size_t)(entries->count + added + 1) * sizeof *larger);
    if (larger == NULL)
        return;
    entries->entry = larger;
    for (const struct class_stats *stats = stats_first(); stats != NULL; stats = stats->next) {
        if (!stats->tried || form_of(stats->key) == PERSISTENT)
            continue;
        struct tuning_entry *entry = find_entry(entries, stats->key, &stats->placement);
        if (entry == NULL) {
            entry = &entries->entry[entries->count++];
            *entry = (struct tuning_entry){.key = stats->key, .placement = stats->placement};
        }
        entry->estimate = stats->estimate;
        for (enum path path = 0; path < PATHS; path++)
            entry->calls += atomic_load(&stats->calls[path]);
    }
    qsort(entries->entry, (size_t)entries->count, sizeof *entries->entry, by_calls_descending);
    entries->count = entries->count < ENTRIES_MAX ? entries->count : ENTRIES_MAX;
}

/* Microseconds for the file: 0 if no launch has measured the path, else at least MICROSECONDS_MIN. */
static double microseconds(const struct estimate *estimate, enum path path)
{
    return estimate->launches == 0 ? 0 : larger(estimate->seconds[path] * 1e6, MICROSECONDS_MIN);
}

/* Writes the text of the file, with as many lines as its limit in bytes allows. */
static size_t print_entries(const struct entries *entries, char *text)
{
    size_t length = (size_t)snprintf(text, BYTES_MAX, FORMAT "\t%s\t%d\t%s\n", cluster, hosts, hostnames);
    for (int at = 0; at < entries->count; at++) {
        const struct tuning_entry *entry = &entries->entry[at];
        char size[8] = "-";
        if (size_of(entry->key) != SIZE_UNKNOWN)
            snprintf(size, sizeof size, "%u", size_of(entry->key));
        int more = snprintf(text + length, BYTES_MAX - length, "%s\t%s\t%s\t%d\t%d\t%.3f\t%.3f\t%u\t%u\t%" PRIu64 "\n",
                            collective_names[collective_of(entry->key)], form_names[form_of(entry->key)], size,
                            entry->placement.hosts, entry->placement.ranks_per_host,
                            microseconds(&entry->estimate, NATIVE), microseconds(&entry->estimate, OFFLOADED),
                            entry->estimate.launches, entry->estimate.unfinished, entry->calls);
        if (more < 0 || length + (size_t)more >= BYTES_MAX)
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
static void replace_file(int at, const char *text, size_t length)
{
    char draft[64];
    snprintf(draft, sizeof draft, ".draft.%ld.tsv", (long)getpid());
    unlinkat(at, draft, 0); /* may be left by a killed run with this process number */
    int to = openat(at, draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to < 0) {
        reject("cannot write: %s", strerror(errno));
        return;
    }
    bool written = write_whole(to, text, length);
    written = close(to) == 0 && written;
    if (written && renameat(at, draft, at, file) == 0)
        return;
    reject("cannot write: %s", strerror(errno));
    unlinkat(at, draft, 0);
}

static bool any_class_tried(void)
{
    for (const struct class_stats *stats = stats_first(); stats != NULL; stats = stats->next)
        if (stats->tried)
            return true;
    return false;
}

void tuning_cache_write(void)
{
    int rank;
    mpi.Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank != 0 || rejected || cluster[0] == '\0' || !any_class_tried())
        return;
    int at = open_folder(true);
    if (at < 0)
        return;
    struct entries entries = load_file(at); /* another run may have ended meanwhile */
    char *text = scratch_allocate(BYTES_MAX);
    if (!rejected && text != NULL) {
        add_stats(&entries);
        replace_file(at, text, print_entries(&entries, text));
    }
    scratch_free(text);
    free(entries.entry);
    close(at);
}

void tuning_cache_free(void)
{
    free(cached.entry);
    cached = (struct entries){NULL, 0};
}
