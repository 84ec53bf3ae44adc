/*
 * fortran.c: the functions of interpose.c by their Fortran names.
 *
 * Open MPI 4.1 and 5.0 give each Fortran function one address under five names. Four are the manglings to which mpif.h
 * and `use mpi` link; the fifth is ompi_NAME_f, which the wrappers of `use mpi_f08` call. Wrappers with logical
 * arguments differ: mpi_NAME_f08_ calls pmpi_NAME_, and is interposed itself. All of them call PMPI_ names, so the C
 * functions of interpose.c never see a Fortran program. Each function here does the shim's part and calls the hidden
 * function for the rest, including conversions of statuses, logicals and arrays.
 *
 * Here MPI itself raises the errors of offloaded requests, on the handler of MPI_COMM_WORLD.
 */
#include "fortran.h"

#include "allocation.h"
#include "choice.h"
#include "communicators.h"
#include "completion.h"
#include "lifetime.h"
#include "persistent.h"

/* Finds the function that the shim hides, also in Fortran's libraries if a module of Python opened them privately. */
void *fortran_hidden(const char *name)
{
    static const char *const libraries[] = {"libmpi_mpifh.so.40", "libmpi_usempif08.so.40"};
    void *found = dlsym(RTLD_NEXT, name);
    for (int i = 0; found == NULL && i < 2; i++) {
        void *library = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);
        found = library == NULL ? NULL : dlsym(library, name);
    }
    if (found == NULL) {
        fprintf(stderr, "outboard: %s is not in this Open MPI's Fortran library; run without the shim\n", name);
        abort();
    }
    return found;
}

static bool succeeded(const MPI_Fint *ierr)
{
    return ierr == NULL || *ierr == MPI_SUCCESS;
}

/* ---- start and end ---- */

FORTRAN(init, INIT, (MPI_Fint * ierr))
{
    HIDDEN(init);
    next(ierr);
    if (succeeded(ierr))
        shim_start();
}

FORTRAN(init_thread, INIT_THREAD, (MPI_Fint * required, MPI_Fint *provided, MPI_Fint *ierr))
{
    HIDDEN(init_thread);
    next(required, provided, ierr);
    if (succeeded(ierr))
        shim_start();
}

FORTRAN(finalize, FINALIZE, (MPI_Fint * ierr))
{
    HIDDEN(finalize);
    shim_stop();
    next(ierr);
}

/* ---- memory ---- */

FORTRAN(alloc_mem, ALLOC_MEM, (MPI_Aint * size, MPI_Fint *info, char *baseptr, MPI_Fint *ierr))
{
    HIDDEN(alloc_mem);
    void *memory = allocation_make(*size);
    if (memory == NULL) {
        next(size, info, baseptr, ierr);
        return;
    }
    *(void **)(void *)baseptr = memory;
    set_ierr(MPI_SUCCESS, ierr);
}

/* With a type(c_ptr) `use mpi` calls the same function by these names. */
#define ALLOC_MEM_CPTR(name)                                                                                           \
    void name(MPI_Aint *size, MPI_Fint *info, char *baseptr, MPI_Fint *ierr) __attribute__((alias("ompi_alloc_mem_f")))
ALLOC_MEM_CPTR(mpi_alloc_mem_cptr);
ALLOC_MEM_CPTR(mpi_alloc_mem_cptr_);
ALLOC_MEM_CPTR(mpi_alloc_mem_cptr__);
ALLOC_MEM_CPTR(MPI_ALLOC_MEM_CPTR);

FORTRAN(free_mem, FREE_MEM, (char *base, MPI_Fint *ierr))
{
    HIDDEN(free_mem);
    if (allocation_free(base))
        set_ierr(MPI_SUCCESS, ierr);
    else
        next(base, ierr);
}

/* ---- completion: the shim interposes no test functions, and times nothing in them ---- */

#define WAIT(lower, upper, count, wait_kind, parameters, arguments)                                                    \
    FORTRAN(lower, upper, parameters)                                                                                  \
    {                                                                                                                  \
        HIDDEN(lower);                                                                                                 \
        struct completion call;                                                                                        \
        completion_begin_fortran(&call, count, requests, wait_kind);                                                   \
        next arguments;                                                                                                \
        completion_end_fortran(&call, requests);                                                                       \
    }

WAIT(wait, WAIT, 1, WAIT_ALL, (MPI_Fint * requests, MPI_Fint *status, MPI_Fint *ierr), (requests, status, ierr))

WAIT(waitall, WAITALL, *count, WAIT_ALL, (MPI_Fint * count, MPI_Fint *requests, MPI_Fint *statuses, MPI_Fint *ierr),
     (count, requests, statuses, ierr))

WAIT(waitany, WAITANY, *count, WAIT_ANY,
     (MPI_Fint * count, MPI_Fint *requests, MPI_Fint *index, MPI_Fint *status, MPI_Fint *ierr),
     (count, requests, index, status, ierr))

WAIT(waitsome, WAITSOME, *count, WAIT_ANY,
     (MPI_Fint * count, MPI_Fint *requests, MPI_Fint *outcount, MPI_Fint *indices, MPI_Fint *statuses, MPI_Fint *ierr),
     (count, requests, outcount, indices, statuses, ierr))

/* ---- persistent requests ---- */

FORTRAN(start, START, (MPI_Fint * request, MPI_Fint *ierr))
{
    HIDDEN(start);
    MPI_Request handle = PMPI_Request_f2c(*request);
    int outcome;
    if (request_start(&handle, &outcome))
        set_ierr(outcome, ierr);
    else
        next(request, ierr);
}

FORTRAN(startall, STARTALL, (MPI_Fint * count, MPI_Fint *requests, MPI_Fint *ierr))
{
    MPI_Fint outcome = MPI_SUCCESS;
    for (int i = 0; i < *count && outcome == MPI_SUCCESS; i++)
        ompi_start_f(&requests[i], &outcome);
    set_ierr(outcome, ierr);
}

FORTRAN(request_free, REQUEST_FREE, (MPI_Fint * request, MPI_Fint *ierr))
{
    HIDDEN(request_free);
    request_release(PMPI_Request_f2c(*request));
    next(request, ierr);
}

/* ---- communicators ---- */

/* The function hidden behind `name` makes the communicator and the shim registers it. `ierr` is optional in mpi_f08. */
#define MAKE_AND_REGISTER(name, lower)                                                                                 \
    {                                                                                                                  \
        HIDDEN_NAME(name);                                                                                             \
        MPI_Fint unused_ierr;                                                                                          \
        ierr = ierr == NULL ? &unused_ierr : ierr;                                                                     \
        next(comm, BETWEEN_##lower(ARGUMENT) made, ierr);                                                              \
        if (*ierr == MPI_SUCCESS)                                                                                      \
            communicator_made(PMPI_Comm_f2c(*made));                                                                   \
    }

#define CONSTRUCTOR(Name, lower, upper)                                                                                \
    FORTRAN(lower, upper, (MPI_Fint * comm, BETWEEN_##lower(PARAMETER) MPI_Fint * made, MPI_Fint * ierr))              \
    MAKE_AND_REGISTER(ompi_##lower##_f, lower)

/* A function with logical arguments, which `use mpi_f08` calls by its own name. */
#define CONSTRUCTOR_F08(Name, lower, upper)                                                                            \
    CONSTRUCTOR(Name, lower, upper)                                                                                    \
    void mpi_##lower##_f08_(MPI_Fint *comm, BETWEEN_##lower(PARAMETER) MPI_Fint *made, MPI_Fint *ierr);                \
    void mpi_##lower##_f08_(MPI_Fint *comm, BETWEEN_##lower(PARAMETER) MPI_Fint *made, MPI_Fint *ierr)                 \
    MAKE_AND_REGISTER(mpi_##lower##_f08_, lower)

CONSTRUCTORS(CONSTRUCTOR)
CONSTRUCTORS_WITH_LOGICALS(CONSTRUCTOR_F08)

#define DESTRUCTOR(lower, upper)                                                                                       \
    FORTRAN(lower, upper, (MPI_Fint * comm, MPI_Fint * ierr))                                                          \
    {                                                                                                                  \
        HIDDEN(lower);                                                                                                 \
        MPI_Comm previous = communicator_begin_free(PMPI_Comm_f2c(*comm));                                             \
        next(comm, ierr);                                                                                              \
        communicator_end_free(previous);                                                                               \
    }

DESTRUCTOR(comm_free, COMM_FREE)
DESTRUCTOR(comm_disconnect, COMM_DISCONNECT)
