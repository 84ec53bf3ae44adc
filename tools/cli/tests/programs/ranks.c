/*
 * ranks.c: the ranks of the end-to-end tests, on the C interface; the argument names the part to play.
 *
 * Lines for the test start with '@'. An unexpected return value ends the rank with exit code 2 and a sentence.
 */
#include <ctype.h>
#include <dirent.h>
#include <outboard.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MEBIBYTE ((size_t)1 << 20)
#define IN_FLIGHT 24
#define GUARD_BYTES 64
#define GUARD 0xA5
/* The victim dies, or kills the service process of its host, in call FATAL_CALL. */
#define VICTIM 2
#define FATAL_CALL 4
/* Ends a rank that receives no error after a loss; far beyond what the test allows. */
#define PATIENCE_MS 40000
/* Delay of a late rank: several times the watchdog's time and the deadline of the tests. */
#define LATE_MS 3000

static outboard_context *context;
static outboard_group *world;
static uint32_t rank;
static uint32_t ranks;

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2;
    line[length++] = '\n';
    /* One write, so that lines of different ranks stay whole. */
    if (write(STDOUT_FILENO, line, (size_t)length) != length)
        exit(2);
}

__attribute__((noreturn)) static void fail(const char *what)
{
    say("rank %u fails: %s: %s", rank, what, outboard_last_error());
    exit(2);
}

static void check(int code, const char *what)
{
    if (code != OUTBOARD_OK)
        fail(what);
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The byte at `at` of the block of rank `of` in call `call`. */
static unsigned char expected(uint32_t of, unsigned call, size_t at)
{
    uint64_t x = ((uint64_t)of << 48) ^ ((uint64_t)call << 32) ^ at;
    x *= 0x9E3779B97F4A7C15u;
    return (unsigned char)(x >> 40);
}

struct call {
    unsigned number;
    size_t bytes;
    int in_place;
    unsigned char *send;
    unsigned char *receive;
    outboard_request *request;
};

/* Buffers of the program, or buffers that the service process maps. */
static unsigned char *memory(size_t bytes, int mapped)
{
    void *block = NULL;
    if (mapped)
        check(outboard_alloc(context, bytes + GUARD_BYTES, &block), "outboard_alloc");
    else
        block = malloc(bytes + GUARD_BYTES);
    if (block == NULL)
        fail("memory");
    memset(block, GUARD, bytes + GUARD_BYTES);
    return block;
}

static void release(void *block, int mapped)
{
    if (mapped)
        check(outboard_dealloc(context, block), "outboard_dealloc");
    else
        free(block);
}

static void post(struct call *call, unsigned number, size_t bytes, int in_place, int mapped)
{
    *call = (struct call){.number = number, .bytes = bytes, .in_place = in_place};
    call->receive = memory(bytes * ranks, mapped);
    call->send = memory(bytes, mapped);
    unsigned char *own = in_place ? call->receive + bytes * rank : call->send;
    for (size_t at = 0; at < bytes; at++)
        own[at] = expected(rank, number, at);
    const void *send = in_place ? OUTBOARD_IN_PLACE : call->send;
    check(outboard_iallgather(world, send, call->receive, bytes, &call->request), "outboard_iallgather");
}

/* Waits, checks every received byte and the bytes behind the received ones, and frees everything. */
static void finish(struct call *call, int mapped)
{
    check(outboard_wait(call->request, -1, NULL), "outboard_wait");
    int done = 0;
    check(outboard_test(call->request, &done), "outboard_test");
    if (!done)
        fail("a request waited for is not done");
    for (uint32_t of = 0; of < ranks; of++)
        for (size_t at = 0; at < call->bytes; at++)
            if (call->receive[of * call->bytes + at] != expected(of, call->number, at)) {
                say("rank %u: call %u of %zu bytes: wrong at byte %zu of rank %u", rank, call->number, call->bytes, at,
                    of);
                exit(2);
            }
    for (size_t at = 0; at < GUARD_BYTES; at++)
        if (call->receive[call->bytes * ranks + at] != GUARD)
            fail("bytes behind the receive buffer are written");
    check(outboard_request_free(call->request), "outboard_request_free");
    release(call->send, mapped);
    release(call->receive, mapped);
}

static void verify(void)
{
    static const size_t sizes[] = {0, 1, 1447, 1448, 100000, MEBIBYTE};
    unsigned number = 0;
    struct call call;
    for (size_t size = 0; size < sizeof sizes / sizeof sizes[0]; size++)
        for (int in_place = 0; in_place <= 1; in_place++)
            for (int mapped = 0; mapped <= 1; mapped++) {
                post(&call, number++, sizes[size], in_place, mapped);
                finish(&call, mapped);
            }
    static struct call calls[IN_FLIGHT];
    for (unsigned at = 0; at < IN_FLIGHT; at++)
        post(&calls[at], number++, (size_t)at * at * 97, at % 2, at % 3 == 0);
    /* In reverse order, so that the test assumes no order of completion. */
    for (unsigned at = IN_FLIGHT; at-- > 0;)
        finish(&calls[at], at % 3 == 0);
    check(outboard_group_destroy(world), "outboard_group_destroy");
    check(outboard_detach(context), "outboard_detach");
    say("@verified rank %u of %u: %u calls", rank, ranks, number);
}

/* Makes a call without checks of bytes, and returns its result. */
static int plain_call(const void *send, void *receive, size_t bytes, void (*meanwhile)(void))
{
    outboard_request *request;
    int code = outboard_iallgather(world, send, receive, bytes, &request);
    if (code != OUTBOARD_OK)
        return code;
    if (meanwhile != NULL)
        meanwhile();
    int done = 0;
    code = outboard_wait(request, PATIENCE_MS, &done);
    if (!done && code == OUTBOARD_OK)
        fail("a call neither ends nor fails");
    return code;
}

static void report(int code)
{
    say("@ended rank %u code %d at %llu: %s", rank, code, (unsigned long long)now_ns(),
        code == OUTBOARD_OK ? "success" : outboard_last_error());
}

static void mismatch(void)
{
    static unsigned char send[2000];
    size_t bytes = rank == 1 ? 2000 : 1000;
    report(plain_call(send, memory(bytes * ranks, 0), bytes, NULL));
}

static void die(void)
{
    say("@fatal at %llu", (unsigned long long)now_ns());
    raise(SIGKILL);
}

/* `kill -9` of the only outboardd that this host's /proc shows. */
static void kill_service(void)
{
    pid_t found = 0;
    DIR *processes = opendir("/proc");
    struct dirent *entry;
    while (processes != NULL && (entry = readdir(processes)) != NULL) {
        char path[300], name[32] = "";
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue;
        if (fgets(name, sizeof name, file) != NULL && strcmp(name, "outboardd\n") == 0) {
            if (found != 0)
                fail("the host has several service processes");
            found = (pid_t)atoi(entry->d_name);
        }
        fclose(file);
    }
    if (processes != NULL)
        closedir(processes);
    if (found == 0)
        fail("the host has no service process");
    say("@fatal at %llu", (unsigned long long)now_ns());
    if (kill(found, SIGKILL) != 0)
        fail("kill");
}

/* Makes calls until one fails. `meanwhile` runs in the middle of a call. */
static void until_failure(void (*meanwhile)(void))
{
    unsigned char *send = memory(MEBIBYTE, 0);
    unsigned char *receive = memory(MEBIBYTE * ranks, 0);
    uint64_t end = now_ns() + (uint64_t)PATIENCE_MS * 1000000u;
    int code = OUTBOARD_OK;
    for (unsigned number = 0; code == OUTBOARD_OK && now_ns() < end; number++) {
        code = plain_call(send, receive, MEBIBYTE, rank == VICTIM && number == FATAL_CALL ? meanwhile : NULL);
        if (number == 0)
            say("@going rank %u", rank);
    }
    report(code);
}

/* Makes no calls, as if the rank computed; ends by a signal, or after too long a wait. */
static void idle(void)
{
    say("@going rank %u", rank);
    sleep(PATIENCE_MS / 1000);
}

/* Rank 1 stays away from the call for which all others wait; ends by a signal, or after too long a wait. */
static void absent(void)
{
    struct call call;
    if (rank != 1) {
        post(&call, 0, MEBIBYTE, 0, 0);
        say("@going rank %u", rank);
        finish(&call, 0);
        return;
    }
    say("@going rank %u", rank);
    sleep(PATIENCE_MS / 1000);
}

/* One call of all ranks, then a call to which rank 1 comes late. */
static void late(double deadline)
{
    unsigned char *send = memory(MEBIBYTE, 0);
    unsigned char *receive = memory(MEBIBYTE * ranks, 0);
    check(plain_call(send, receive, 1000, NULL), "the call of all");
    check(outboard_group_deadline(world, deadline), "outboard_group_deadline");
    if (rank == 1)
        usleep(LATE_MS * 1000);
    report(plain_call(send, receive, MEBIBYTE, NULL));
}

int main(int argc, char **argv)
{
    const char *part = argc == 2 ? argv[1] : "";
    check(outboard_init(&context, &world), "outboard_init");
    check(outboard_group_rank(world, &rank), "outboard_group_rank");
    check(outboard_group_size(world, &ranks), "outboard_group_size");
    if (strcmp(part, "verify") == 0)
        verify();
    else if (strcmp(part, "mismatch") == 0)
        mismatch();
    else if (strcmp(part, "victim") == 0)
        until_failure(die);
    else if (strcmp(part, "victim-service") == 0)
        until_failure(kill_service);
    else if (strcmp(part, "forever") == 0)
        until_failure(NULL);
    else if (strcmp(part, "idle") == 0)
        idle();
    else if (strcmp(part, "absent") == 0)
        absent();
    else if (strcmp(part, "late") == 0)
        late(0);
    else if (strcmp(part, "deadline") == 0)
        late(0.5);
    else
        fail("the argument names no part");
    return 0;
}
