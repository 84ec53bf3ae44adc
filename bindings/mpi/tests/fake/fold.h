/*
 * fold.h: what a reduction does to two vectors.
 */
#ifndef OUTBOARD_FAKE_FOLD_H
#define OUTBOARD_FAKE_FOLD_H

#include <stdint.h>

/* Bytes from one element to the next; 0 for what is none. */
uint64_t element_bytes(int element);
/* `into[i] = into[i] op with[i]`, the left operand being the lower rank's. */
void fold(void *into, const void *with, uint64_t count, int op, int element);

#endif
