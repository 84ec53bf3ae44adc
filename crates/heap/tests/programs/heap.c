/*
 * heap.c: exercises malloc and related calls with the preload library; the argument names the part to run.
 *
 * Exits with 0 if all is right, else with 1 and a line that names the place.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define KIBIBYTE ((size_t)1 << 10)
#define MEBIBYTE ((size_t)1 << 20)
#define LARGE (64 * KIBIBYTE)
#define PAGE ((size_t)4096)
#define HUGE_PAGE (2 * MEBIBYTE)
/* Number of forks after which the program's new memory is not shared. */
#define MOST_FORKS 8

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("line %d of process %d: %s\n", __LINE__, (int)getpid(), #what);                                     \
            fflush(stdout);                                                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

extern char **environ;
static char **own_arguments;
static uint64_t heap_start, heap_bytes;

static int find_heap(void)
{
    int (*heap)(uint64_t *, uint64_t *);
    *(void **)&heap = dlsym(RTLD_DEFAULT, "outboard_heap");
    return heap != NULL && heap(&heap_start, &heap_bytes) >= 0;
}

static int shared(const void *memory)
{
    return (uint64_t)(uintptr_t)memory - heap_start < heap_bytes;
}

static int holds(const unsigned char *memory, unsigned char byte, size_t bytes)
{
    return bytes == 0 || (memory[0] == byte && memcmp(memory, memory + 1, bytes - 1) == 0);
}

/* Bytes that the process has mapped and, in `resident` if set, those that have memory. */
static size_t mapped(size_t *resident)
{
    size_t total, pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%zu %zu", &total, &pages) == 2);
    fclose(file);
    if (resident != NULL)
        *resident = pages * PAGE;
    return total * PAGE;
}

static size_t resident(void)
{
    size_t bytes;
    mapped(&bytes);
    return bytes;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Sizes around every boundary that an allocator may have. */
static const size_t around[] = {1, PAGE, LARGE, 128 * KIBIBYTE, MEBIBYTE, HUGE_PAGE};
#define BOUNDARIES (sizeof around / sizeof around[0])

static void check_size(size_t bytes)
{
    unsigned char *memory = malloc(bytes);
    CHECK(memory != NULL && shared(memory) == (bytes >= LARGE));
    CHECK((uintptr_t)memory % _Alignof(max_align_t) == 0 && malloc_usable_size(memory) >= bytes);
    memset(memory, 0xA5, malloc_usable_size(memory));
    free(memory);
    memory = calloc(1, bytes);
    CHECK(memory != NULL && shared(memory) == (bytes >= LARGE) && holds(memory, 0, bytes));
    memset(memory, 0x5A, bytes);
    for (size_t to = 0; to < BOUNDARIES; to++) {
        size_t kept = bytes < around[to] ? bytes : around[to];
        memory = realloc(memory, around[to]);
        CHECK(memory != NULL && shared(memory) == (around[to] >= LARGE) && holds(memory, 0x5A, kept));
        memset(memory, 0x5A, around[to]);
        memory = realloc(memory, bytes);
        CHECK(memory != NULL && shared(memory) == (bytes >= LARGE) && holds(memory, 0x5A, kept));
        memset(memory, 0x5A, bytes);
    }
    CHECK(realloc(memory, 0) == NULL);
}

static void check_alignment(size_t alignment, size_t bytes)
{
    void *memory = NULL;
    CHECK(posix_memalign(&memory, alignment, bytes) == 0);
    void *const all[] = {memory, aligned_alloc(alignment, bytes), memalign(alignment, bytes)};
    for (size_t at = 0; at < sizeof all / sizeof all[0]; at++) {
        CHECK(all[at] != NULL && (uintptr_t)all[at] % alignment == 0 && shared(all[at]) == (bytes >= LARGE));
        CHECK(malloc_usable_size(all[at]) >= bytes);
        memset(all[at], 0xC3, bytes);
        unsigned char *grown = realloc(all[at], bytes + LARGE);
        CHECK(grown != NULL && shared(grown) && holds(grown, 0xC3, bytes));
        free(grown);
    }
}

static void sizes(void)
{
    for (size_t at = 0; at < BOUNDARIES; at++)
        for (size_t bytes = around[at] - 1; bytes <= around[at] + 1; bytes++)
            if (bytes > 0)
                check_size(bytes);
    check_size(33 * MEBIBYTE);
    for (size_t alignment = sizeof(void *); alignment <= 2 * HUGE_PAGE; alignment *= 2) {
        check_alignment(alignment, LARGE);
        check_alignment(alignment, LARGE - 1);
        check_alignment(alignment, 3 * MEBIBYTE + 1);
    }
    volatile size_t most = SIZE_MAX, half = PTRDIFF_MAX;
    void *memory = malloc(LARGE), *untouched = (void *)1;
    CHECK(malloc(most) == NULL && errno == ENOMEM && malloc(half) == NULL && calloc(half, 4) == NULL);
    errno = 0;
    CHECK(reallocarray(memory, half, 4) == NULL && errno == ENOMEM && realloc(memory, half) == NULL);
    CHECK(posix_memalign(&untouched, 3, LARGE) == EINVAL && posix_memalign(&untouched, 4, LARGE) == EINVAL);
    CHECK(posix_memalign(&untouched, 64, most - 64) == ENOMEM && untouched == (void *)1);
    CHECK((memory = reallocarray(memory, 3, LARGE)) != NULL && shared(memory));
    errno = 77;
    free(memory);
    CHECK(errno == 77);
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
    CHECK((memory = valloc(LARGE)) != NULL && shared(memory) && (uintptr_t)memory % PAGE == 0);
    free(memory);
    CHECK((memory = pvalloc(LARGE + 1)) != NULL && shared(memory) && malloc_usable_size(memory) >= LARGE + PAGE);
    free(memory);
    /* A buffer that grows by pages. */
    unsigned char *chain = NULL;
    for (size_t bytes = PAGE; bytes < 8 * MEBIBYTE; bytes += 3 * PAGE) {
        CHECK((chain = realloc(chain, bytes)) != NULL && (bytes == PAGE || holds(chain, 0x11, bytes - 3 * PAGE)));
        memset(chain, 0x11, bytes);
    }
    free(chain);
}

/* ---- threads ---- */

#define THREADS 4
#define SLOTS 64

struct slot {
    unsigned char *memory;
    size_t bytes;
    unsigned char byte;
};

static _Atomic(struct slot *) slots[SLOTS];
static atomic_int going;
static unsigned rounds;

static void discard(struct slot *slot)
{
    if (slot == NULL)
        return;
    CHECK(holds(slot->memory, slot->byte, slot->bytes));
    free(slot->memory);
    free(slot);
}

/* A thread finds, resizes and frees allocations of another thread. */
static void *exchange(void *argument)
{
    uint64_t random = 0x9E3779B97F4A7C15u + (uintptr_t)argument;
    for (unsigned round = 0; round < rounds || (rounds == 0 && going); round++) {
        struct slot *slot = malloc(sizeof *slot);
        CHECK(slot != NULL);
        slot->bytes = (size_t)1 << next_random(&random) % 19;
        slot->bytes += next_random(&random) % slot->bytes;
        slot->byte = (unsigned char)next_random(&random);
        slot->memory = next_random(&random) % 2 ? malloc(slot->bytes) : calloc(slot->bytes, 1);
        CHECK(slot->memory != NULL);
        memset(slot->memory, slot->byte, slot->bytes);
        slot = atomic_exchange(&slots[next_random(&random) % SLOTS], slot);
        if (slot != NULL && next_random(&random) % 3 == 0) {
            size_t bytes = 1 + next_random(&random) % (512 * KIBIBYTE);
            size_t kept = bytes < slot->bytes ? bytes : slot->bytes;
            slot->memory = realloc(slot->memory, bytes);
            CHECK(slot->memory != NULL && holds(slot->memory, slot->byte, kept));
            memset(slot->memory, slot->byte, bytes);
            slot->bytes = bytes;
        }
        discard(slot);
    }
    return NULL;
}

static void start(pthread_t *threads)
{
    going = 1;
    for (size_t at = 0; at < THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, exchange, (void *)(at + 1)) == 0);
}

static void stop(const pthread_t *threads)
{
    going = 0;
    for (size_t at = 0; at < THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    for (size_t at = 0; at < SLOTS; at++)
        discard(atomic_exchange(&slots[at], NULL));
}

static void in_threads(unsigned wanted)
{
    pthread_t threads[THREADS];
    rounds = wanted;
    start(threads);
    stop(threads);
}

static pthread_key_t key;

/* Runs when a thread ends, among the destructors of all other keys. */
static void ends(void *resized)
{
    static _Thread_local int rounds_left = PTHREAD_DESTRUCTOR_ITERATIONS;
    for (size_t bytes = LARGE; bytes <= MEBIBYTE; bytes *= 2) {
        unsigned char *memory = malloc(bytes);
        CHECK(memory != NULL && malloc_usable_size(memory) >= bytes);
        memset(memory, 0x77, bytes);
        CHECK((memory = realloc(memory, 2 * bytes)) != NULL && holds(memory, 0x77, bytes));
        free(memory);
    }
    CHECK((resized = realloc(resized, (size_t)rounds_left * MEBIBYTE)) != NULL && holds(resized, 0x66, LARGE));
    if (--rounds_left > 0)
        CHECK(pthread_setspecific(key, resized) == 0);
    else
        free(resized);
}

static void *ending(void *argument)
{
    void *memory = malloc(LARGE);
    CHECK(shared(memory) && pthread_setspecific(key, memset(memory, 0x66, LARGE)) == 0);
    free(malloc(MEBIBYTE));
    return argument;
}

static void threads_that_end(void)
{
    CHECK(pthread_key_create(&key, ends) == 0);
    for (int round = 0; round < 10; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, ending, NULL) == 0 && pthread_join(thread, NULL) == 0);
    }
}

/* ---- forks ---- */

static void await(pid_t child)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static pid_t forked(void)
{
    fflush(stdout);
    return fork();
}

/* Child of a round: the child sees the content at the fork, whatever its parent has written since. */
static void check_child(unsigned char *written, unsigned char *zeroed, unsigned char round, int ready)
{
    char word;
    CHECK(read(ready, &word, 1) == 1);
    CHECK(holds(written, round, MEBIBYTE) && holds(zeroed, 0, 4 * MEBIBYTE));
    memset(written, 0xEE, MEBIBYTE);
    memset(zeroed, 0xEE, 4 * MEBIBYTE);
    unsigned char *fresh = calloc(3, MEBIBYTE);
    CHECK(fresh != NULL && !shared(fresh) && holds(fresh, 0, 3 * MEBIBYTE));
    pid_t grandchild = forked();
    if (grandchild == 0) {
        CHECK(holds(written, 0xEE, MEBIBYTE));
        free(written);
        _exit(0);
    }
    await(grandchild);
    written = realloc(written, 2 * MEBIBYTE);
    CHECK(written != NULL && holds(written, 0xEE, MEBIBYTE));
    free(written);
    free(zeroed);
    free(fresh);
    /* Enough frees to return memory to the kernel, which must not be the parent's memory. */
    for (int at = 0; at < 100; at++) {
        void *volatile memory = malloc(MEBIBYTE);
        free(memory);
    }
    _exit(0);
}

static void fork_round(unsigned char round)
{
    unsigned char *written = malloc(MEBIBYTE), *zeroed = calloc(4, MEBIBYTE);
    CHECK(written != NULL && zeroed != NULL && shared(written) && shared(zeroed));
    memset(written, round, MEBIBYTE);
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = forked();
    if (child == 0)
        check_child(written, zeroed, round, ready[0]);
    memset(written, round + 100, MEBIBYTE);
    memset(zeroed, round + 100, 4 * MEBIBYTE);
    CHECK(write(ready[1], "", 1) == 1);
    await(child);
    CHECK(holds(written, round + 100, MEBIBYTE) && holds(zeroed, round + 100, 4 * MEBIBYTE));
    close(ready[0]);
    close(ready[1]);
    free(written);
    free(zeroed);
}

static void forks(void)
{
    pthread_t threads[THREADS];
    rounds = 0;
    start(threads);
    for (unsigned char round = 1; round < MOST_FORKS; round++)
        fork_round(round);
    stop(threads);
    void *memory = malloc(LARGE);
    CHECK(shared(memory));
    free(memory);
}

/* After the last fork with a copy, new memory is plain, and existing memory stays. */
static void often(void)
{
    unsigned char *before = malloc(MEBIBYTE);
    memset(before, 1, MEBIBYTE);
    for (int round = 0; round < MOST_FORKS + 2; round++) {
        void *memory = malloc(LARGE);
        CHECK(shared(memory) == (round < MOST_FORKS));
        free(memory);
        pid_t child = forked();
        if (child == 0)
            _exit(!holds(before, 1, MEBIBYTE));
        await(child);
    }
    before = realloc(before, 2 * MEBIBYTE);
    CHECK(shared(before) && holds(before, 1, MEBIBYTE));
    free(before);
}

static void await_vforked(char *const *arguments)
{
    pid_t child = vfork();
    if (child == 0) {
        execvp(arguments[0], arguments);
        _exit(1);
    }
    await(child);
}

/* Children that become another program cost nothing, and leave the heap unchanged. */
static void spawns(void)
{
    unsigned char *memory = malloc(16 * MEBIBYTE);
    memset(memory, 3, 16 * MEBIBYTE);
    for (int round = 0; round < MOST_FORKS; round++) {
        CHECK(system("true") == 0);
        FILE *piped = popen("echo piped", "r");
        char line[8] = "";
        CHECK(piped != NULL && fgets(line, sizeof line, piped) != NULL && strcmp(line, "piped\n") == 0);
        CHECK(pclose(piped) == 0);
        char *const arguments[] = {"true", NULL};
        pid_t child;
        CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0);
        await(child);
        await_vforked(arguments);
    }
    void *fresh = malloc(LARGE);
    CHECK(shared(fresh) && holds(memory, 3, 16 * MEBIBYTE));
    char *const arguments[] = {own_arguments[0], "shared", NULL};
    execv("/proc/self/exe", arguments);
    CHECK(!"exec fails");
}

/* The child has its own memory, and nothing at the addresses of its parent's memory. */
static void without_copy(unsigned char *memory)
{
    pid_t child = forked();
    if (child == 0) {
        unsigned char *own[64];
        for (size_t at = 0; at < sizeof own / sizeof own[0]; at++) {
            CHECK((own[at] = malloc(128 * KIBIBYTE)) != NULL && !shared(own[at]));
            memset(own[at], 5, 128 * KIBIBYTE);
            CHECK((own[at] = realloc(own[at], 256 * KIBIBYTE)) != NULL && holds(own[at], 5, 128 * KIBIBYTE));
        }
        for (size_t at = 0; at < sizeof own / sizeof own[0]; at++)
            free(own[at]);
        free(memory);
        _exit(0);
    }
    await(child);
    CHECK(holds(memory, 9, MEBIBYTE));
    free(memory);
}

/* Children of a program that closes all descriptors lack its heap. A line reports this, and all else works. */
static void closes(void)
{
    unsigned char *memory = malloc(MEBIBYTE);
    memset(memory, 9, MEBIBYTE);
    for (int descriptor = 3; descriptor < 1024; descriptor++)
        close(descriptor);
    without_copy(memory);
}

/* A child gets no copy that would exceed a limit. */
static void starves(void)
{
    unsigned char *memory = malloc(64 * MEBIBYTE);
    memset(memory, 9, 64 * MEBIBYTE);
    size_t limit = mapped(NULL) + 32 * MEBIBYTE;
    CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){limit, RLIM_INFINITY}) == 0);
    without_copy(memory);
}

static void fork_there(void)
{
    await(forked());
}

/* Parent and child cannot share a stack. */
static void on_a_stack_of_malloc(void)
{
    static ucontext_t here, there;
    CHECK(getcontext(&there) == 0);
    there.uc_stack.ss_size = MEBIBYTE;
    there.uc_stack.ss_sp = malloc(MEBIBYTE);
    there.uc_link = &here;
    makecontext(&there, fork_there, 0);
    CHECK(swapcontext(&here, &there) == 0);
}

/* ---- memory given back ---- */

static void given_back(void)
{
    enum { PIECES = 256 };
    static void *pieces[PIECES];
    size_t before = resident();
    for (size_t at = 0; at < PIECES; at++)
        memset(pieces[at] = malloc(MEBIBYTE), 1, MEBIBYTE);
    CHECK(resident() > before + 250 * MEBIBYTE);
    for (size_t at = 0; at < PIECES; at++)
        free(pieces[at]);
    CHECK(resident() < before + 80 * MEBIBYTE);
    void *volatile one = memset(malloc(150 * MEBIBYTE), 1, 150 * MEBIBYTE);
    free(one);
    CHECK(resident() < before + 80 * MEBIBYTE);
    /* mlockall loads the pages that were ever in use, not the whole range. */
    if (mlockall(MCL_CURRENT) == 0)
        CHECK(resident() < before + 1024 * MEBIBYTE);
}

/* A core dump contains the readable part of the range, and no further mapping. */
static void dumps(void)
{
    void *volatile memory = malloc(MEBIBYTE);
    free(memory);
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512], rights[5] = "";
    uintptr_t start, end;
    int mappings = 0, ours = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &start, &end, rights) == 3)
            ours = shared((void *)start);
        else if (ours && strncmp(line, "VmFlags:", 8) == 0) {
            CHECK((strstr(line, " dd") != NULL) == (rights[0] != 'r'));
            mappings++;
        }
    }
    CHECK(mappings >= 2);
    fclose(file);
}

/* mlockall of future pages loads no part of a copy that the parent has never used. */
static void locked(void)
{
    unsigned char *memory = malloc(MEBIBYTE);
    memset(memory, 4, MEBIBYTE);
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0)
        return;
    pid_t child = forked();
    if (child == 0) {
        CHECK(holds(memory, 4, MEBIBYTE) && resident() < 512 * MEBIBYTE);
        CHECK((memory = realloc(memory, 4 * MEBIBYTE)) != NULL && holds(memory, 4, MEBIBYTE));
        memset(memory, 5, 4 * MEBIBYTE);
        free(memory);
        _exit(0);
    }
    await(child);
    free(memory);
}

int main(int count, char **arguments)
{
    own_arguments = arguments;
    const char *part = count > 1 ? arguments[1] : "";
    int there = find_heap();
    if (strcmp(part, "which") == 0) {
        void *volatile memory = malloc(LARGE);
        puts(there && shared(memory) ? "shared" : "plain");
        return 0;
    }
    CHECK(there);
    if (strcmp(part, "sizes") == 0)
        sizes();
    else if (strcmp(part, "threads") == 0)
        in_threads(count > 2 ? (unsigned)atoi(arguments[2]) : 20000);
    else if (strcmp(part, "ends") == 0)
        threads_that_end();
    else if (strcmp(part, "loads") == 0) {
        /* The kernel ends the process if it deadlocks. */
        alarm(120);
        CHECK(count > 2 && dlopen(arguments[2], RTLD_NOW) != NULL);
    } else if (strcmp(part, "forks") == 0)
        forks();
    else if (strcmp(part, "often") == 0)
        often();
    else if (strcmp(part, "spawns") == 0)
        spawns();
    else if (strcmp(part, "closes") == 0)
        closes();
    else if (strcmp(part, "starves") == 0)
        starves();
    else if (strcmp(part, "locked") == 0)
        locked();
    else if (strcmp(part, "stack") == 0)
        on_a_stack_of_malloc();
    else if (strcmp(part, "given-back") == 0)
        given_back();
    else if (strcmp(part, "dumps") == 0)
        dumps();
    else if (strcmp(part, "shared") != 0)
        CHECK(!"a part that is known");
    return 0;
}
