/* control.c: see control.h. */
#define _GNU_SOURCE
#include "control.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static const int64_t NS_PER_SECOND = 1000000000;

int control_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        fprintf(stderr, "control socket path is too long: %s\n", path);
        return -1;
    }
    strcpy(address.sun_path, path);
    const int line = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (line < 0 || connect(line, (const struct sockaddr *)&address, sizeof address) != 0) {
        fprintf(stderr, "control socket %s: %s\n", path, strerror(errno));
        return -1;
    }
    return line;
}

int control_send(int line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int written = vdprintf(line, format, arguments);
    va_end(arguments);
    return written >= 0 ? 0 : -1;
}

int control_receive(int line, char *text, size_t capacity)
{
    /* Reads byte by byte: lines are short and rare, and the next line must stay in the socket. */
    for (size_t at = 0; at < capacity; at++) {
        ssize_t got;
        do
            got = read(line, &text[at], 1);
        while (got < 0 && errno == EINTR);
        if (got != 1)
            return -1;
        if (text[at] == '\n') {
            text[at] = '\0';
            return 0;
        }
    }
    return -1;
}

void write_numbers(FILE *row, const char *name, const double *first, size_t count, size_t stride)
{
    fprintf(row, "\"%s\":[", name);
    for (size_t at = 0; at < count; at++)
        fprintf(row, "%s%.6f", at > 0 ? "," : "", first[at * stride]);
    fputs("],", row);
}

void complain(uint32_t rank, const char *format, va_list arguments)
{
    fprintf(stderr, "rank %u: ", rank);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    fflush(stderr);
}

static int64_t read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * NS_PER_SECOND + now.tv_nsec;
}

int64_t clock_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t process_cpu_ns(void)
{
    return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

int64_t thread_cpu_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

int64_t thread_cpu_before_ns(void)
{
    (void)thread_cpu_ns();
    return thread_cpu_ns();
}

void clock_sleep_until_ns(int64_t instant_ns)
{
    const struct timespec until = {.tv_sec = instant_ns / NS_PER_SECOND, .tv_nsec = instant_ns % NS_PER_SECOND};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

int host_check(const char *layout, uint32_t rank, uint32_t ranks)
{
    char own[256] = "";
    char expected[16];
    char *rest = NULL;
    const uint32_t hosts = (uint32_t)strtoul(layout, &rest, 10);
    const int strided = strcmp(rest, ":strided") == 0;
    if (hosts == 0 || ranks % hosts != 0 || (!strided && strcmp(rest, ":contiguous") != 0)) {
        fprintf(stderr, "%u ranks cannot lie on hosts as %s\n", ranks, layout);
        return -1;
    }
    snprintf(expected, sizeof expected, "h%u", (strided ? rank % hosts : rank / (ranks / hosts)) + 1);
    if (gethostname(own, sizeof own - 1) != 0 || strcmp(own, expected) != 0) {
        fprintf(stderr, "rank %u was started on host %s, not on %s as %s says\n", rank, own, expected, layout);
        return -1;
    }
    return 0;
}

int core_bind(int thread, int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(thread, sizeof set, &set) != 0) {
        fprintf(stderr, "binding thread %d to core %d: %s\n", thread, core, strerror(errno));
        return -1;
    }
    return 0;
}
