/*
 * fake.h: declarations shared by the parts of the fake.
 */
#ifndef OUTBOARD_FAKE_H
#define OUTBOARD_FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "outboard.h"

#define MOST_RANKS 64

/* In a reduction: the elements that this rank receives, and the ranks over which they are combined. */
struct combined {
    int op, element;       /* 0: no reduction */
    uint64_t first, count; /* elements */
    uint32_t from, to;     /* ranks */
};

struct outboard_request {
    outboard_group *group;
    void *receive;
    uint64_t bytes, offset; /* of this rank's contribution, in its file */
    struct combined combined;
    uint64_t *blocks;      /* of an alltoall: received bytes by rank, then offsets by rank; else NULL */
    int outcome;
    bool done, freed, passed;
    outboard_request *next;
};

struct outboard_group {
    uint32_t ranks, rank;
    char name[96];
    struct segment *segment;
    int files[MOST_RANKS];
    uint64_t posted, offset;
    outboard_request *queue;
    bool closing;
    pthread_t thread;
};

/* ---- fake.c ---- */

long setting(const char *name, long otherwise);
/* Returns `outcome` and keeps the message for outboard_last_error(). */
int __attribute__((format(printf, 2, 3))) failure(int outcome, const char *format, ...);
/* A request of the group; its `blocks` or `combined` describe the result. Holds the lock until the request is
 * submitted. */
outboard_request *begin(outboard_group *group, void *receive);
/* Writes this rank's contribution to its file, at the same place on every rank. */
void leave(outboard_request *request, const void *from, uint64_t bytes);
int submit(outboard_request *request, outboard_request **posted);

/* ---- fold.c ---- */

/* Bytes from one element to the next; 0 for an unknown element. */
uint64_t element_bytes(int op, int element);
/* Counts requests with an operator of the program; others are ignored. */
void own_operator_use(int op, int change);
/* `into[i] = into[i] op with[i]`, the left operand being the lower rank's. */
void fold(void *into, const void *with, uint64_t count, int op, int element);

#endif
