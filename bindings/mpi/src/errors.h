/*
 * errors.h: outcomes of liboutboard as MPI error codes.
 */
#ifndef OUTBOARD_MPI_ERRORS_H
#define OUTBOARD_MPI_ERRORS_H

#include "mpi.h"
#include <stdbool.h>

/* The MPI error code for an outcome of liboutboard, with this message as its string. */
int error_code(int outcome, const char *message);
/* The MPI error code for the outcome of a liboutboard call, with its message; MPI_SUCCESS for OUTBOARD_OK. */
int outcome_code(int outcome);
/* Whether `code` stands for this outcome, which is a failure. */
bool error_is_outcome(int code, int outcome);
/* Raises the code on the communicator's error handler and returns it. */
int error_raise(MPI_Comm comm, int code);

#endif
