/*
 * fortran.h: macros that interpose a function by its Fortran names; see fortran.c.
 */
#ifndef OUTBOARD_MPI_FORTRAN_H
#define OUTBOARD_MPI_FORTRAN_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "interposed.h"

/* Fortran's integers are as wide as C's in every Open MPI that this shim supports. */
_Static_assert(sizeof(MPI_Fint) == sizeof(int), "counts can be handed on as they are");

void *fortran_hidden(const char *name);

/* Returns the outcome to the program; `ierr` is optional in mpi_f08. */
static inline void set_ierr(int outcome, MPI_Fint *ierr)
{
    if (ierr != NULL)
        *ierr = outcome;
}

/* Defines the function and its four manglings. */
#define FORTRAN_AS(function, lower, upper, parameters)                                                                 \
    void function parameters;                                                                                          \
    void lower parameters __attribute__((alias(#function)));                                                           \
    void lower##_ parameters __attribute__((alias(#function)));                                                        \
    void lower##__ parameters __attribute__((alias(#function)));                                                       \
    void upper parameters __attribute__((alias(#function)));                                                           \
    void function parameters

#define FORTRAN(lower, upper, parameters) FORTRAN_AS(ompi_##lower##_f, mpi_##lower, MPI_##upper, parameters)

/* Declares `next`: the function that the function of this name hides. */
#define HIDDEN(lower) HIDDEN_NAME(ompi_##lower##_f)
#define HIDDEN_NAME(name)                                                                                              \
    static __typeof__(&name) volatile next;                                                                            \
    if (next == NULL)                                                                                                  \
    *(void *volatile *)&next = fortran_hidden(#name)

#endif
