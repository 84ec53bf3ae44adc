/*
 * operators.h: MPI's predefined operators and datatypes as liboutboard's.
 */
#ifndef OUTBOARD_MPI_OPERATORS_H
#define OUTBOARD_MPI_OPERATORS_H

#include "mpi.h"
#include <stdbool.h>
#include <stdint.h>

#include "outboard.h"

/* A reduction in liboutboard's terms. */
struct reduction {
    enum outboard_operator operator;
    enum outboard_element element;
    uint64_t element_bytes;
};

/* False if liboutboard lacks this operator on this datatype: it is the program's own, or undefined. */
bool reduction_of(MPI_Op op, MPI_Datatype type, struct reduction *reduction);

#endif
