/*
 * fortran_collectives.c: the functions of collectives.c by their Fortran names; see fortran.c.
 */
#include "fortran.h"

/* Fortran's MPI_BOTTOM and MPI_IN_PLACE are variables of libmpi, recognised by their addresses. */
extern int mpi_fortran_bottom_ __attribute__((weak));
extern int mpi_fortran_in_place_ __attribute__((weak));

static void *fortran_buffer(char *address)
{
    if (address == (char *)&mpi_fortran_bottom_)
        return MPI_BOTTOM;
    return address == (char *)&mpi_fortran_in_place_ ? MPI_IN_PLACE : address;
}

static void answer_request(int outcome, MPI_Request made, MPI_Fint *request, MPI_Fint *ierr)
{
    if (outcome == MPI_SUCCESS)
        *request = PMPI_Request_c2f(made);
    answer(outcome, ierr);
}

/* `offloaded` carries the call out and `answers` returns the outcome, or the hidden function does both. Then `passed`
 * is the request of a nonblocking call. */
#define FORM(function, name, NAME, form, offloaded, answers, passed, lower, send, receive, with, more_parameters,      \
             more_arguments)                                                                                           \
    FORTRAN_AS(function, name, NAME, (PARAMETERS(send, receive, with) UNPACK more_parameters, MPI_Fint * ierr))        \
    {                                                                                                                  \
        HIDDEN_NAME(function);                                                                                         \
        const struct call call = CALL(lower, send, receive, with);                                                     \
        MPI_Request made __attribute__((unused));                                                                      \
        struct turn turn;                                                                                              \
        if (choice_offloads(&call, form, &turn)) {                                                                     \
            int outcome = offloaded;                                                                                   \
            answers;                                                                                                   \
            return;                                                                                                    \
        }                                                                                                              \
        next(ARGUMENTS(send, receive, with) UNPACK more_arguments, ierr);                                              \
        choice_passed(&turn, COLLECTIVE_##lower, form, passed);                                                        \
    }

#define PERSISTENT_FORM(function, name, NAME, ...)                                                                     \
    FORM(function, name, NAME, PERSISTENT, offload_persistent(&call, &turn, &made),                                    \
         answer_request(outcome, made, request, ierr), MPI_REQUEST_NULL, __VA_ARGS__,                                  \
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
    FORM(ompi_##lower##_f, mpi_##lower, MPI_##upper, BLOCKING, offload(&call, &turn), answer(outcome, ierr),           \
         MPI_REQUEST_NULL, lower, send, receive, with, (), ())                                                         \
    FORM(ompi_i##lower##_f, mpi_i##lower, MPI_I##upper, NONBLOCKING, offload_nonblocking(&call, &turn, &made),         \
         answer_request(outcome, made, request, ierr), turn.timed ? PMPI_Request_f2c(*request) : MPI_REQUEST_NULL,     \
         lower, send, receive, with, (, MPI_Fint * request), (, request))                                              \
    PERSISTENT_OF(lower, upper, send, receive, with)

COLLECTIVES(COLLECTIVE)
