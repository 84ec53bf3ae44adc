/*
 * fortran_collectives.c: the functions of collectives.c by their Fortran names; see fortran.c.
 */
#include "fortran.h"

#include "choice.h"
#include "classes.h"
#include "methods.h"
#include "posting.h"

/* Fortran's MPI_BOTTOM and MPI_IN_PLACE are variables of libmpi, recognised by their addresses. */
extern int mpi_fortran_bottom_ __attribute__((weak));
extern int mpi_fortran_in_place_ __attribute__((weak));

static void *fortran_buffer(char *address)
{
    if (address == (char *)&mpi_fortran_bottom_)
        return MPI_BOTTOM;
    return address == (char *)&mpi_fortran_in_place_ ? MPI_IN_PLACE : address;
}

static void set_request_and_ierr(int outcome, MPI_Request made, MPI_Fint *request, MPI_Fint *ierr)
{
    if (outcome == MPI_SUCCESS)
        *request = PMPI_Request_c2f(made);
    set_ierr(outcome, ierr);
}

/* `offloaded` carries the call out and `return_outcome` returns the outcome, or the hidden function does both. Then
 * `passed` is the request of a nonblocking call. */
#define FORM(function, name, NAME, form, offloaded, return_outcome, passed, lower, send, receive, with,                \
             more_parameters, more_arguments)                                                                          \
    FORTRAN_AS(function, name, NAME, (PARAMETERS(send, receive, with) UNWRAP more_parameters, MPI_Fint * ierr))        \
    {                                                                                                                  \
        HIDDEN_NAME(function);                                                                                         \
        const struct call call = CALL(lower, send, receive, with);                                                     \
        MPI_Request made __attribute__((unused));                                                                      \
        struct route route;                                                                                            \
        if (choice_offloads(&call, form, &route)) {                                                                    \
            int outcome = offloaded;                                                                                   \
            return_outcome;                                                                                            \
            return;                                                                                                    \
        }                                                                                                              \
        next(ARGUMENTS(send, receive, with) UNWRAP more_arguments, ierr);                                              \
        choice_record_passed(&route, COLLECTIVE_##lower, form, passed);                                                \
    }

#define PERSISTENT_FORM(function, name, NAME, ...)                                                                     \
    FORM(function, name, NAME, PERSISTENT, offload_persistent(&call, &route, &made),                                   \
         set_request_and_ierr(outcome, made, request, ierr), MPI_REQUEST_NULL, __VA_ARGS__,                            \
         (, MPI_Fint * info, MPI_Fint * request), (, info, request))

/* Open MPI 4.1 has the persistent forms as an extension. */
#if OMPI_MAJOR_VERSION >= 5
#define PERSISTENT_OF(lower, upper, ...)                                                                               \
    PERSISTENT_FORM(ompi_##lower##_init_f, mpi_##lower##_init, MPI_##upper##_INIT, lower, __VA_ARGS__)
#else
#define PERSISTENT_OF(lower, upper, ...)                                                                               \
    PERSISTENT_FORM(ompix_##lower##_init_f, mpix_##lower##_init, MPIX_##upper##_INIT, lower, __VA_ARGS__)
#endif

#define COLLECTIVE(Name, lower, upper, method, send, receive, with)                                                    \
    FORM(ompi_##lower##_f, mpi_##lower, MPI_##upper, BLOCKING, offload(&call, &route), set_ierr(outcome, ierr),        \
         MPI_REQUEST_NULL, lower, send, receive, with, (), ())                                                         \
    FORM(ompi_i##lower##_f, mpi_i##lower, MPI_I##upper, NONBLOCKING, offload_nonblocking(&call, &route, &made),        \
         set_request_and_ierr(outcome, made, request, ierr),                                                           \
         route.timed ? PMPI_Request_f2c(*request) : MPI_REQUEST_NULL, lower, send, receive, with,                      \
         (, MPI_Fint * request), (, request))                                                                          \
    PERSISTENT_OF(lower, upper, send, receive, with)

COLLECTIVES(COLLECTIVE)
