/*
 * control.h: the control line to the harness, the clock and the cores; shared by all programs here.
 *
 * The line is a Unix socket that carries text lines both ways. The program sends a line at each point where the harness
 * must act (read counters), and waits for the answer. So no time is guessed.
 */
#ifndef CONTROL_H
#define CONTROL_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Connects to the harness and returns the descriptor; prints the reason and returns -1 on failure. */
int control_connect(const char *path);
/* Sends a line, formatted as by printf; the format ends in a newline. Returns 0, or -1 when the harness is gone. */
int control_send(int line, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Waits for a line, without its newline. Returns 0, or -1 when the harness is gone or the line too long. */
int control_receive(int line, char *text, size_t capacity);

/* Writes "NAME":[...], and a comma. The `count` numbers lie `stride` apart. */
void write_numbers(FILE *row, const char *name, const double *first, size_t count, size_t stride);
/* Prints "rank R: " and a sentence, formatted as by vprintf. */
void complain(uint32_t rank, const char *format, va_list arguments);

/* The monotonic clock of the machine in nanoseconds; the emulated hosts share it. */
int64_t clock_now_ns(void);
void clock_sleep_until_ns(int64_t instant_ns);
/* Processor time of all threads of this process, in nanoseconds. */
int64_t process_cpu_ns(void);
/* Processor time of the calling thread alone, in nanoseconds. */
int64_t thread_cpu_ns(void);
/* Like thread_cpu_ns, for use ahead of an activity of microseconds. The function reads the clock twice, because the
 * first reading after a while itself takes microseconds. */
int64_t thread_cpu_before_ns(void);

/* Checks that this rank runs on the host of its layout: "HOSTS:contiguous" (neighbours in rank share a host) or
 * "HOSTS:strided" (ranks go to the hosts in turn, h1 first). A launcher that places ranks otherwise would be
 * measured under the wrong name. Returns 0, or -1 with the reason printed. */
int host_check(const char *layout, uint32_t rank, uint32_t ranks);

/* Binds a thread (0: the calling one) to one core; prints the reason and returns -1 on failure. */
int core_bind(int thread, int core);

#endif
