/*
 * control.h: the line to the harness and what goes over it, the clock and the cores; shared by all programs here.
 *
 * The line is a Unix socket that carries text lines both ways. What the harness has to do at a certain point of the
 * program (read counters) it does between a line it receives and the line it answers, so no time is guessed.
 */
#ifndef CONTROL_H
#define CONTROL_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Connects to the harness and returns the descriptor; prints the reason and returns -1 when it cannot. */
int control_connect(const char *path);
/* Sends a line made as printf does; the format ends in a newline. 0, or -1 when the harness is gone. */
int control_send(int line, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Waits for a line of the harness, its newline removed; 0, or -1 when the harness is gone or the line too long. */
int control_receive(int line, char *text, size_t capacity);

/* Writes "NAME":[...], of so many numbers, each `stride` after the one before, and a comma. */
void write_numbers(FILE *row, const char *name, const double *first, size_t count, size_t stride);
/* Prints "rank R: ", and a sentence made as vprintf does. */
void complain(uint32_t rank, const char *format, va_list arguments);

/* The monotonic clock of the machine in nanoseconds; the emulated hosts share it. */
int64_t clock_now_ns(void);
void clock_sleep_until_ns(int64_t instant_ns);
/* Processor time of all threads of this process, in nanoseconds. */
int64_t process_cpu_ns(void);
/* Processor time of the calling thread alone, in nanoseconds. */
int64_t thread_cpu_ns(void);
/* The same ahead of something that takes microseconds: the first reading after a while takes as long itself. */
int64_t thread_cpu_before_ns(void);

/* Checks that this process runs where a layout, "HOSTS:contiguous" or "HOSTS:strided", has this rank: neighbours in
 * rank share a host, or ranks are dealt to the hosts in turn, h1 first. A launcher that placed ranks otherwise would be
 * measured under the wrong name. 0, or -1 when it does not; prints the reason. */
int host_check(const char *layout, uint32_t rank, uint32_t ranks);

/* Binds a thread (0: the calling one) to one core; prints the reason and returns -1 when it cannot. */
int core_bind(int thread, int core);

#endif
