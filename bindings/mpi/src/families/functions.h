/*
 * functions.h: the functions and variables of the MPI library that the shim uses, found when the library is known.
 *
 * The shim links to no MPI. Each family's mpi.h includes this file behind its types, so one list serves all families.
 * Each function has its PMPI_ name: `mpi.Comm_rank` is PMPI_Comm_rank.
 */
#ifndef OUTBOARD_MPI_FUNCTIONS_H
#define OUTBOARD_MPI_FUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "../interposed.h"

typedef int copy_function(MPI_Comm, int, void *, void *, void *, int *);
typedef int delete_function(MPI_Comm, int, void *, void *);
typedef int type_copy_function(MPI_Datatype, int, void *, void *, void *, int *);
typedef int type_delete_function(MPI_Datatype, int, void *, void *);
typedef int query_function(void *, MPI_Status *);
typedef int free_function(void *);
typedef int cancel_function(void *, int);

#define MPI_FUNCTIONS(X)                                                                                               \
    X(Abort, (MPI_Comm, int))                                                                                          \
    X(Add_error_class, (int *))                                                                                        \
    X(Add_error_code, (int, int *))                                                                                    \
    X(Add_error_string, (int, const char *))                                                                           \
    X(Alloc_mem, (MPI_Aint, MPI_Info, void *))                                                                         \
    X(Cancel, (MPI_Request *))                                                                                         \
    X(Cart_get, (MPI_Comm, int, int *, int *, int *))                                                                  \
    X(Cart_shift, (MPI_Comm, int, int, int *, int *))                                                                  \
    X(Cartdim_get, (MPI_Comm, int *))                                                                                  \
    X(Comm_call_errhandler, (MPI_Comm, int))                                                                           \
    X(Comm_create_keyval, (copy_function *, delete_function *, int *, void *))                                         \
    X(Comm_delete_attr, (MPI_Comm, int))                                                                               \
    X(Comm_disconnect, (MPI_Comm *))                                                                                   \
    X(Comm_free, (MPI_Comm *))                                                                                         \
    X(Comm_free_keyval, (int *))                                                                                       \
    X(Comm_get_attr, (MPI_Comm, int, void *, int *))                                                                   \
    X(Comm_get_errhandler, (MPI_Comm, MPI_Errhandler *))                                                               \
    X(Comm_get_name, (MPI_Comm, char *, int *))                                                                        \
    X(Comm_group, (MPI_Comm, MPI_Group *))                                                                             \
    X(Comm_rank, (MPI_Comm, int *))                                                                                    \
    X(Comm_set_attr, (MPI_Comm, int, void *))                                                                          \
    X(Comm_size, (MPI_Comm, int *))                                                                                    \
    X(Comm_test_inter, (MPI_Comm, int *))                                                                              \
    X(Dist_graph_neighbors, (MPI_Comm, int, int *, int *, int, int *, int *))                                          \
    X(Dist_graph_neighbors_count, (MPI_Comm, int *, int *, int *))                                                     \
    X(Errhandler_free, (MPI_Errhandler *))                                                                             \
    X(Finalize, (void))                                                                                                \
    X(Free_mem, (void *))                                                                                              \
    X(Get_library_version, (char *, int *))                                                                            \
    X(Get_processor_name, (char *, int *))                                                                             \
    X(Graph_neighbors, (MPI_Comm, int, int, int *))                                                                    \
    X(Graph_neighbors_count, (MPI_Comm, int, int *))                                                                   \
    X(Grequest_complete, (MPI_Request))                                                                                \
    X(Grequest_start, (query_function *, free_function *, cancel_function *, void *, MPI_Request *))                   \
    X(Group_free, (MPI_Group *))                                                                                       \
    X(Group_translate_ranks, (MPI_Group, int, const int *, MPI_Group, int *))                                          \
    X(Init, (int *, char ***))                                                                                         \
    X(Init_thread, (int *, char ***, int, int *))                                                                      \
    X(Iprobe, (int, int, MPI_Comm, int *, MPI_Status *))                                                               \
    X(Op_free, (MPI_Op *))                                                                                             \
    X(Pack, (const void *, int, MPI_Datatype, void *, int, int *, MPI_Comm))                                           \
    X(Recv, (void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status *))                                             \
    X(Recv_init, (void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *))                                       \
    X(Reduce_local, (const void *, void *, int, MPI_Datatype, MPI_Op))                                                 \
    X(Request_free, (MPI_Request *))                                                                                   \
    X(Request_get_status, (MPI_Request, int *, MPI_Status *))                                                          \
    X(Send, (const void *, int, MPI_Datatype, int, int, MPI_Comm))                                                     \
    X(Start, (MPI_Request *))                                                                                          \
    X(Status_set_cancelled, (MPI_Status *, int))                                                                       \
    X(Status_set_elements, (MPI_Status *, MPI_Datatype, int))                                                          \
    X(Test, (MPI_Request *, int *, MPI_Status *))                                                                      \
    X(Testall, (int, MPI_Request *, int *, MPI_Status *))                                                              \
    X(Testany, (int, MPI_Request *, int *, int *, MPI_Status *))                                                       \
    X(Testsome, (int, MPI_Request *, int *, int *, MPI_Status *))                                                      \
    X(Topo_test, (MPI_Comm, int *))                                                                                    \
    X(Type_commit, (MPI_Datatype *))                                                                                   \
    X(Type_contiguous, (int, MPI_Datatype, MPI_Datatype *))                                                            \
    X(Type_create_keyval, (type_copy_function *, type_delete_function *, int *, void *))                               \
    X(Type_dup, (MPI_Datatype, MPI_Datatype *))                                                                        \
    X(Type_free, (MPI_Datatype *))                                                                                     \
    X(Type_free_keyval, (int *))                                                                                       \
    X(Type_get_attr, (MPI_Datatype, int, void *, int *))                                                               \
    X(Type_get_contents, (MPI_Datatype, int, int, int, int *, MPI_Aint *, MPI_Datatype *))                             \
    X(Type_get_envelope, (MPI_Datatype, int *, int *, int *, int *))                                                   \
    X(Type_get_extent_x, (MPI_Datatype, MPI_Count *, MPI_Count *))                                                     \
    X(Type_get_true_extent_x, (MPI_Datatype, MPI_Count *, MPI_Count *))                                                \
    X(Type_set_attr, (MPI_Datatype, int, void *))                                                                      \
    X(Type_size_x, (MPI_Datatype, MPI_Count *))                                                                        \
    X(Unpack, (const void *, int, int *, void *, int, MPI_Datatype, MPI_Comm))                                         \
    X(Wait, (MPI_Request *, MPI_Status *))                                                                             \
    X(Waitall, (int, MPI_Request *, MPI_Status *))                                                                     \
    X(Waitany, (int, MPI_Request *, int *, MPI_Status *))                                                              \
    X(Waitsome, (int, MPI_Request *, int *, int *, MPI_Status *))

/* Functions of MPI 4.1, which a library may lack. */
#define MPI_LATER_FUNCTIONS(X)                                                                                         \
    X(Request_get_status_all, (int, const MPI_Request *, int *, MPI_Status *))                                         \
    X(Request_get_status_any, (int, const MPI_Request *, int *, int *, MPI_Status *))                                  \
    X(Request_get_status_some, (int, const MPI_Request *, int *, int *, MPI_Status *))

struct mpi_library {
#define FIELD(name, parameters) int(*name) parameters;
    MPI_FUNCTIONS(FIELD)
    MPI_LATER_FUNCTIONS(FIELD)
#undef FIELD
#define FIELD(name) int (*name)(MPI_Comm comm, BETWEEN_##name(PARAMETER) MPI_Comm *made);
    CONSTRUCTORS(FIELD)
#undef FIELD
#define FORMS_OF(P, Name, lower, suffix, ...)                                                                          \
    int (*Name##suffix)(PARAMETERS(P, __VA_ARGS__));                                                                   \
    int (*I##lower##suffix)(PARAMETERS(P, __VA_ARGS__), MPI_Request * request);                                        \
    int (*Name##_init##suffix)(PARAMETERS(P, __VA_ARGS__), MPI_Info info, MPI_Request * request);
#define FIELDS(Name, lower, method, ...)                                                                               \
    FORMS_OF(PARAMETER, Name, lower, , __VA_ARGS__) FORMS_OF(PARAMETER_C, Name, lower, _c, __VA_ARGS__)
    COLLECTIVES(FIELDS)
#undef FIELDS
#undef FORMS_OF
    double (*Wtime)(void);
#define FIELD(name) void *name;
    MPI_VARIABLES(FIELD)
#undef FIELD
};

extern struct mpi_library mpi;

#endif
