/*
 * operators.h: MPI's operators and datatypes as liboutboard's.
 */
#ifndef OUTBOARD_MPI_OPERATORS_H
#define OUTBOARD_MPI_OPERATORS_H

#include "mpi.h"
#include <stdbool.h>
#include <stdint.h>

#include "outboard.h"

/* A reduction in liboutboard's terms. */
struct reduction {
    int operator; /* an enum outboard_operator, or the number of an operator of the program */
    int element;  /* an enum outboard_element, or 0 */
    uint64_t element_bytes;
};

/* False if liboutboard lacks this operator on this datatype. An operator of the program gets a number at its first use
 * on a datatype. */
bool reduction_of(MPI_Op op, MPI_Datatype type, struct reduction *reduction);
/* Whether the operator or the datatype is the program's own. */
bool reduction_is_own(MPI_Op op, MPI_Datatype type);

/* ---- own_operators.c ---- */

bool own_reduction_of(MPI_Op op, MPI_Datatype type, struct reduction *reduction);
/* A call that is posted later uses the reduction until it is released. Other operators are ignored. */
void own_operator_hold(MPI_Op op, MPI_Datatype type);
void own_operator_release(MPI_Op op, MPI_Datatype type);
/* Whether a reduction in flight may use the operator, or the datatype: the shim then frees it later. */
bool own_operator_keep_op(MPI_Op op);
bool own_operator_keep_type(MPI_Datatype type);
/* Frees what no reduction uses any more. */
void own_operators_free_unused(void);
void own_operators_stop(void);

#endif
