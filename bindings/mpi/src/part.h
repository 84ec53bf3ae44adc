/*
 * part.h: what the front knows of a part: the shim for one family of MPI libraries.
 *
 * A family has one binary interface: Open MPI; MPICH and what descends from it; the standard ABI of MPI 5. Its part is
 * the shim's sources compiled against the family's mpi.h (families/), with no symbol visible but its struct part.
 */
#ifndef OUTBOARD_MPI_PART_H
#define OUTBOARD_MPI_PART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void any_function(void);

/* The code of a library in memory. */
struct code_range {
    uintptr_t start;
    size_t bytes;
};

/* A function of the shim that stands for MPI_`name` and PMPI_`name`. */
struct interposed {
    const char *name;
    any_function *function;
};

struct part {
    /* Takes the functions of an MPI library from this handle of dlopen(). False leaves the reason in `message`: the
     * library is of another family or too old, and the program runs natively. */
    bool (*bind)(void *library, struct code_range code, char *message, size_t bytes);
    /* NULL if the shim has no function of this name. */
    any_function *(*find)(const char *name);
};

extern const struct part part_openmpi, part_mpich, part_abi;

#endif
