/*
 * repetitions.h: what the programs on transport.h share: the talk with the harness, and how all ranks begin together.
 */
#ifndef REPETITIONS_H
#define REPETITIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Memory filled with zeros; ends the process where there is none. */
void *allocate(size_t bytes);
/* The numbers of a list of sizes: one `shape`, such as "BYTES:CALLS", after another, separated by commas, into a row of
 * `parts` each. Returns how many rows; ends the process where there are more than `most` or one has another shape. */
int parse_sizes(const char *text, const char *shape, int parts, int most, int64_t *numbers);

/* Ends the process where its rank does not run where the layout (see host_check) has it; NULL is not checked. */
void check_layout(const char *layout);

/* Finds the harness and tells it what library answers. Only rank 0 does; the functions below do nothing on the others. */
void harness_open(const char *control);
/* Tells the harness and goes on, on all ranks, when it has answered: "begin" or "end" of a phase. */
void harness_mark(const char *what);
/* Sends a line that has no answer. */
void harness_say(const char *line);
/* A row in the making, and its end: what was written goes to the harness. */
FILE *row_begin(char **text, size_t *length);
void row_send(FILE *row, char **text);

/* Doubles of all ranks, so many of each, in rank order: the same on all ranks. To be freed. */
void *gather_doubles(const void *mine, int count);

/* The instant at which all ranks begin: the latest rank's now, and the time that the token buckets of the links need after
 * this very exchange to be full again. Hosts share the clock, so nothing is on the links when it strikes. */
int64_t agree_start(int64_t refill_ns);

/* Binds the rank to a core; -1 leaves it. After the library has started its threads, so that they are not born on that core. */
void bind_main(int core);

#endif
