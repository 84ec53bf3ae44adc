/*
 * fold.c: the arithmetic of the fake's reductions, as MPI defines it; aborts if an operator is undefined.
 */
#include "fake.h"

#include <complex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <stdlib.h>

#define PAIRS(X)                                                                                                       \
    X(OUTBOARD_F32_INDEX, float)                                                                                       \
    X(OUTBOARD_F64_INDEX, double)                                                                                      \
    X(OUTBOARD_I64_INDEX, long)                                                                                        \
    X(OUTBOARD_I32_INDEX, int)                                                                                         \
    X(OUTBOARD_I16_INDEX, short)
#define INTEGERS(X)                                                                                                    \
    X(OUTBOARD_I8, int8_t)                                                                                             \
    X(OUTBOARD_I16, int16_t)                                                                                           \
    X(OUTBOARD_I32, int32_t)                                                                                           \
    X(OUTBOARD_I64, int64_t)                                                                                           \
    X(OUTBOARD_U8, uint8_t)                                                                                            \
    X(OUTBOARD_U16, uint16_t)                                                                                          \
    X(OUTBOARD_U32, uint32_t)                                                                                          \
    X(OUTBOARD_U64, uint64_t)
#define NUMBERS(X)                                                                                                     \
    X(OUTBOARD_F32, float)                                                                                             \
    X(OUTBOARD_F64, double)
#define COMPLEXES(X)                                                                                                   \
    X(OUTBOARD_COMPLEX_F32, float complex)                                                                             \
    X(OUTBOARD_COMPLEX_F64, double complex)

#define PAIR_STRUCT(name, type)                                                                                        \
    struct pair_##name {                                                                                               \
        type value;                                                                                                    \
        int index;                                                                                                     \
    };
PAIRS(PAIR_STRUCT)

/* Operators of the program; their numbers begin at OWN. */
enum { OWN = 1000, OWN_MOST = 256 };
static struct {
    outboard_op_function function;
    size_t bytes;
    void *context;
    atomic_int uses;
} own[OWN_MOST];

int outboard_op_create(outboard_op_function function, size_t bytes, void *context, int *op)
{
    int at = 0;
    while (at < OWN_MOST && own[at].function != NULL)
        at++;
    if (at == OWN_MOST)
        return OUTBOARD_ERR_RESOURCE;
    own[at].function = function;
    own[at].bytes = bytes;
    own[at].context = context;
    *op = OWN + at;
    return OUTBOARD_OK;
}

void own_operator_use(int op, int change)
{
    if (op >= OWN)
        atomic_fetch_add(&own[op - OWN].uses, change);
}

int outboard_op_free(int op)
{
    if (atomic_load(&own[op - OWN].uses) > 0)
        return OUTBOARD_ERR_BUSY;
    own[op - OWN].function = NULL;
    return OUTBOARD_OK;
}

static bool is_own(int op)
{
    return op >= OWN && op < OWN + OWN_MOST && own[op - OWN].function != NULL;
}

uint64_t element_bytes(int op, int element)
{
    if (is_own(op))
        return element == 0 ? own[op - OWN].bytes : 0;
    if (op < OUTBOARD_SUM || op > OUTBOARD_LOGICAL_XOR)
        return 0;
#define BYTES(name, type)                                                                                              \
    case name:                                                                                                         \
        return sizeof(type);
#define PAIR_BYTES(name, type)                                                                                         \
    case name:                                                                                                         \
        return sizeof(struct pair_##name);
    switch (element) {
        INTEGERS(BYTES)
        NUMBERS(BYTES)
        COMPLEXES(BYTES)
        PAIRS(PAIR_BYTES)
    default:
        return 0;
    }
}

/* One operator on the element `*a` with right operand `b`. */
#define CASE(name, result)                                                                                             \
    case OUTBOARD_##name:                                                                                              \
        *a = result;                                                                                                   \
        break;
#define ARITHMETIC CASE(SUM, *a + b) CASE(PRODUCT, *a * b)
#define ORDER CASE(MINIMUM, b < *a ? b : *a) CASE(MAXIMUM, b > *a ? b : *a)
#define BITS                                                                                                           \
    CASE(BIT_AND, *a & b) CASE(BIT_OR, *a | b) CASE(BIT_XOR, *a ^ b)                                                   \
    CASE(LOGICAL_AND, *a && b) CASE(LOGICAL_OR, *a || b) CASE(LOGICAL_XOR, !*a != !b)

/* Folds one element of a class. */
#define FOLD(name, type, cases)                                                                                        \
    static void fold_##name(type *a, type b, int op)                                                                   \
    {                                                                                                                  \
        switch (op) {                                                                                                  \
            cases                                                                                                      \
        default:                                                                                                       \
            abort();                                                                                                   \
        }                                                                                                              \
    }
#define INTEGER_FOLD(name, type) FOLD(name, type, ARITHMETIC ORDER BITS)
#define NUMBER_FOLD(name, type) FOLD(name, type, ARITHMETIC ORDER)
#define COMPLEX_FOLD(name, type) FOLD(name, type, ARITHMETIC)
#define PAIR_FOLD(name, type)                                                                                          \
    static void fold_##name(struct pair_##name *a, struct pair_##name b, int op)                                       \
    {                                                                                                                  \
        if (op != OUTBOARD_MINIMUM_LOCATION && op != OUTBOARD_MAXIMUM_LOCATION)                                        \
            abort();                                                                                                   \
        int wins = op == OUTBOARD_MINIMUM_LOCATION ? b.value < a->value : b.value > a->value;                          \
        if (wins || (b.value == a->value && b.index < a->index))                                                       \
            *a = b;                                                                                                    \
    }
INTEGERS(INTEGER_FOLD)
NUMBERS(NUMBER_FOLD)
COMPLEXES(COMPLEX_FOLD)
PAIRS(PAIR_FOLD)

/* The operator of the program leaves the result in its second operand, that of the higher ranks. */
static void fold_own(void *into, const void *with, uint64_t count, int op)
{
    size_t bytes = count * own[op - OWN].bytes;
    void *higher = malloc(bytes + 1);
    memcpy(higher, with, bytes);
    own[op - OWN].function(into, higher, count, own[op - OWN].context);
    memcpy(into, higher, bytes);
    free(higher);
}

void fold(void *into, const void *with, uint64_t count, int op, int element)
{
    if (is_own(op)) {
        fold_own(into, with, count, op);
        return;
    }
#define EACH(name, type)                                                                                               \
    case name:                                                                                                         \
        for (uint64_t i = 0; i < count; i++)                                                                           \
            fold_##name((type *)into + i, ((const type *)with)[i], op);                                                \
        break;
#define EACH_PAIR(name, type) EACH(name, struct pair_##name)
    switch (element) {
        INTEGERS(EACH)
        NUMBERS(EACH)
        COMPLEXES(EACH)
        PAIRS(EACH_PAIR)
    default:
        abort();
    }
}
