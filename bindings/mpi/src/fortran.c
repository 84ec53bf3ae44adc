/*
 * fortran.c: the functions of interpose.c by their Fortran names.
 *
 * Open MPI 4.1 and 5.0 give each Fortran function one address under five names: the four manglings that mpif.h and
 * `use mpi` link to, and ompi_NAME_f, which the wrappers of `use mpi_f08` call (but for those with logical arguments:
 * mpi_NAME_f08_ calls pmpi_NAME_, and is interposed itself). They in turn call PMPI_ names, so the C functions of
 * interpose.c never see a Fortran program. Each function here does the shim's part and lets the one that it hides do
 * the rest, conversions of statuses, logicals and arrays included.
 *
 * Errors of offloaded requests are raised by MPI itself here, on the handler of MPI_COMM_WORLD.
 */
#include "fortran.h"

/* The function that the shim hides; where Fortran's libraries were opened privately (a module of Python), there. */
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
    void *memory = allocation_take(*size);
    if (memory == NULL) {
        next(size, info, baseptr, ierr);
        return;
    }
    *(void **)(void *)baseptr = memory;
    answer(MPI_SUCCESS, ierr);
}

/* With a type(c_ptr) `use mpi` calls the same by these names. */
#define ALLOC_MEM_CPTR(name)                                                                                           \
    void name(MPI_Aint *size, MPI_Fint *info, char *baseptr, MPI_Fint *ierr) __attribute__((alias("ompi_alloc_mem_f")))
ALLOC_MEM_CPTR(mpi_alloc_mem_cptr);
ALLOC_MEM_CPTR(mpi_alloc_mem_cptr_);
ALLOC_MEM_CPTR(mpi_alloc_mem_cptr__);
ALLOC_MEM_CPTR(MPI_ALLOC_MEM_CPTR);

FORTRAN(free_mem, FREE_MEM, (char *base, MPI_Fint *ierr))
{
    HIDDEN(free_mem);
    if (allocation_give(base))
        answer(MPI_SUCCESS, ierr);
    else
        next(base, ierr);
}

/* ---- completion: the test functions need nothing of the shim ---- */

FORTRAN(wait, WAIT, (MPI_Fint * request, MPI_Fint *status, MPI_Fint *ierr))
{
    HIDDEN(wait);
    completion_sleep(1, request, WAIT_ALL);
    next(request, status, ierr);
}

FORTRAN(waitall, WAITALL, (MPI_Fint * count, MPI_Fint *requests, MPI_Fint *statuses, MPI_Fint *ierr))
{
    HIDDEN(waitall);
    completion_sleep(*count, requests, WAIT_ALL);
    next(count, requests, statuses, ierr);
}

FORTRAN(waitany, WAITANY,
        (MPI_Fint * count, MPI_Fint *requests, MPI_Fint *index, MPI_Fint *status, MPI_Fint *ierr))
{
    HIDDEN(waitany);
    completion_sleep(*count, requests, WAIT_ANY);
    next(count, requests, index, status, ierr);
}

FORTRAN(waitsome, WAITSOME,
        (MPI_Fint * incount, MPI_Fint *requests, MPI_Fint *outcount, MPI_Fint *indices, MPI_Fint *statuses,
         MPI_Fint *ierr))
{
    HIDDEN(waitsome);
    completion_sleep(*incount, requests, WAIT_ANY);
    next(incount, requests, outcount, indices, statuses, ierr);
}

/* ---- persistent requests ---- */

FORTRAN(start, START, (MPI_Fint * request, MPI_Fint *ierr))
{
    HIDDEN(start);
    MPI_Request handle = PMPI_Request_f2c(*request);
    int outcome;
    if (request_start(&handle, &outcome))
        answer(outcome, ierr);
    else
        next(request, ierr);
}

FORTRAN(startall, STARTALL, (MPI_Fint * count, MPI_Fint *requests, MPI_Fint *ierr))
{
    MPI_Fint outcome = MPI_SUCCESS;
    for (int i = 0; i < *count && outcome == MPI_SUCCESS; i++)
        ompi_start_f(&requests[i], &outcome);
    answer(outcome, ierr);
}

FORTRAN(request_free, REQUEST_FREE, (MPI_Fint * request, MPI_Fint *ierr))
{
    HIDDEN(request_free);
    request_forget(PMPI_Request_f2c(*request));
    next(request, ierr);
}

/* ---- communicators ---- */

/* A constructor: the hidden one makes the communicator, the shim gives it a group. */
#define CONSTRUCTOR(lower, upper, parameters, arguments)                                                               \
    FORTRAN(lower, upper, parameters)                                                                                  \
    {                                                                                                                  \
        HIDDEN(lower);                                                                                                 \
        ATTACH_AFTER(arguments);                                                                                       \
    }

/* As above for a function with logical arguments, which `use mpi_f08` calls by a name of its own. */
#define CONSTRUCTOR_F08(lower, upper, parameters, arguments)                                                           \
    CONSTRUCTOR(lower, upper, parameters, arguments)                                                                   \
    void mpi_##lower##_f08_ parameters;                                                                                \
    void mpi_##lower##_f08_ parameters                                                                                 \
    {                                                                                                                  \
        HIDDEN_NAME(mpi_##lower##_f08_);                                                                               \
        ATTACH_AFTER(arguments);                                                                                       \
    }

/* `ierr` is optional in mpi_f08. */
#define ATTACH_AFTER(arguments)                                                                                        \
    MPI_Fint unasked;                                                                                                  \
    ierr = ierr == NULL ? &unasked : ierr;                                                                             \
    next arguments;                                                                                                    \
    if (*ierr == MPI_SUCCESS)                                                                                          \
    group_attach(PMPI_Comm_f2c(*made))

CONSTRUCTOR(comm_dup, COMM_DUP, (MPI_Fint * comm, MPI_Fint *made, MPI_Fint *ierr), (comm, made, ierr))

CONSTRUCTOR(comm_dup_with_info, COMM_DUP_WITH_INFO,
            (MPI_Fint * comm, MPI_Fint *info, MPI_Fint *made, MPI_Fint *ierr), (comm, info, made, ierr))

CONSTRUCTOR(comm_split, COMM_SPLIT,
            (MPI_Fint * comm, MPI_Fint *color, MPI_Fint *key, MPI_Fint *made, MPI_Fint *ierr),
            (comm, color, key, made, ierr))

CONSTRUCTOR(comm_split_type, COMM_SPLIT_TYPE,
            (MPI_Fint * comm, MPI_Fint *type, MPI_Fint *key, MPI_Fint *info, MPI_Fint *made, MPI_Fint *ierr),
            (comm, type, key, info, made, ierr))

CONSTRUCTOR(comm_create, COMM_CREATE, (MPI_Fint * comm, MPI_Fint *group, MPI_Fint *made, MPI_Fint *ierr),
            (comm, group, made, ierr))

CONSTRUCTOR(comm_create_group, COMM_CREATE_GROUP,
            (MPI_Fint * comm, MPI_Fint *group, MPI_Fint *tag, MPI_Fint *made, MPI_Fint *ierr),
            (comm, group, tag, made, ierr))

CONSTRUCTOR_F08(cart_create, CART_CREATE,
            (MPI_Fint * comm, MPI_Fint *ndims, MPI_Fint *dims, MPI_Fint *periods, MPI_Fint *reorder, MPI_Fint *made,
             MPI_Fint *ierr),
            (comm, ndims, dims, periods, reorder, made, ierr))

CONSTRUCTOR_F08(cart_sub, CART_SUB, (MPI_Fint * comm, MPI_Fint *remain, MPI_Fint *made, MPI_Fint *ierr),
            (comm, remain, made, ierr))

CONSTRUCTOR_F08(graph_create, GRAPH_CREATE,
            (MPI_Fint * comm, MPI_Fint *nnodes, MPI_Fint *index, MPI_Fint *edges, MPI_Fint *reorder, MPI_Fint *made,
             MPI_Fint *ierr),
            (comm, nnodes, index, edges, reorder, made, ierr))

CONSTRUCTOR_F08(dist_graph_create, DIST_GRAPH_CREATE,
            (MPI_Fint * comm, MPI_Fint *n, MPI_Fint *sources, MPI_Fint *degrees, MPI_Fint *destinations,
             MPI_Fint *weights, MPI_Fint *info, MPI_Fint *reorder, MPI_Fint *made, MPI_Fint *ierr),
            (comm, n, sources, degrees, destinations, weights, info, reorder, made, ierr))

CONSTRUCTOR_F08(dist_graph_create_adjacent, DIST_GRAPH_CREATE_ADJACENT,
            (MPI_Fint * comm, MPI_Fint *indegree, MPI_Fint *sources, MPI_Fint *source_weights, MPI_Fint *outdegree,
             MPI_Fint *destinations, MPI_Fint *destination_weights, MPI_Fint *info, MPI_Fint *reorder, MPI_Fint *made,
             MPI_Fint *ierr),
            (comm, indegree, sources, source_weights, outdegree, destinations, destination_weights, info, reorder,
             made, ierr))

CONSTRUCTOR_F08(intercomm_merge, INTERCOMM_MERGE, (MPI_Fint * inter, MPI_Fint *high, MPI_Fint *made, MPI_Fint *ierr),
            (inter, high, made, ierr))

FORTRAN(comm_free, COMM_FREE, (MPI_Fint * comm, MPI_Fint *ierr))
{
    HIDDEN(comm_free);
    group_drain_comm(PMPI_Comm_f2c(*comm));
    next(comm, ierr);
}

FORTRAN(comm_disconnect, COMM_DISCONNECT, (MPI_Fint * comm, MPI_Fint *ierr))
{
    HIDDEN(comm_disconnect);
    group_drain_comm(PMPI_Comm_f2c(*comm));
    next(comm, ierr);
}
