/*
 * mpi.h: the types and constants of Open MPI 4.1, 5 and 6, as far as the shim uses them. Its handles are addresses of
 * variables of the MPI library. The tests compare this file with an installed mpi.h (tests/headers.c).
 */
#ifndef OUTBOARD_MPI_FAMILY_OPENMPI_H
#define OUTBOARD_MPI_FAMILY_OPENMPI_H

#include <stddef.h>
#include <stdint.h>

typedef long MPI_Aint;
typedef long long MPI_Count, MPI_Offset;
typedef struct ompi_communicator_t *MPI_Comm;
typedef struct ompi_datatype_t *MPI_Datatype;
typedef struct ompi_errhandler_t *MPI_Errhandler;
typedef struct ompi_group_t *MPI_Group;
typedef struct ompi_info_t *MPI_Info;
typedef struct ompi_op_t *MPI_Op;
typedef struct ompi_request_t *MPI_Request;

typedef struct {
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
    int internal;
    size_t more_internal;
} MPI_Status;

/* Open MPI polls its sockets at every eighth probe. */
#define PROBES_FOR_PROGRESS 8

#define MPI_AINT ((MPI_Datatype)mpi.ompi_mpi_aint)
#define MPI_ANY_SOURCE (-1)
#define MPI_ANY_TAG (-1)
#define MPI_BAND ((MPI_Op)mpi.ompi_mpi_op_band)
#define MPI_BOR ((MPI_Op)mpi.ompi_mpi_op_bor)
#define MPI_BOTTOM ((void *)0)
#define MPI_BXOR ((MPI_Op)mpi.ompi_mpi_op_bxor)
#define MPI_BYTE ((MPI_Datatype)mpi.ompi_mpi_byte)
#define MPI_COMBINER_CONTIGUOUS 2
#define MPI_COMBINER_DUP 1
#define MPI_COMBINER_NAMED 0
#define MPI_COMM_NULL ((MPI_Comm)mpi.ompi_mpi_comm_null)
#define MPI_COMM_SELF ((MPI_Comm)mpi.ompi_mpi_comm_self)
#define MPI_COMM_WORLD ((MPI_Comm)mpi.ompi_mpi_comm_world)
#define MPI_COMPLEX ((MPI_Datatype)mpi.ompi_mpi_cplex)
#define MPI_COMPLEX16 ((MPI_Datatype)mpi.ompi_mpi_complex16)
#define MPI_COMPLEX8 ((MPI_Datatype)mpi.ompi_mpi_complex8)
#define MPI_COUNT ((MPI_Datatype)mpi.ompi_mpi_count)
#define MPI_CXX_DOUBLE_COMPLEX ((MPI_Datatype)mpi.ompi_mpi_cxx_dblcplex)
#define MPI_CXX_FLOAT_COMPLEX ((MPI_Datatype)mpi.ompi_mpi_cxx_cplex)
#define MPI_C_BOOL ((MPI_Datatype)mpi.ompi_mpi_c_bool)
#define MPI_C_DOUBLE_COMPLEX ((MPI_Datatype)mpi.ompi_mpi_c_double_complex)
#define MPI_C_FLOAT_COMPLEX ((MPI_Datatype)mpi.ompi_mpi_c_float_complex)
#define MPI_DATATYPE_NULL ((MPI_Datatype)mpi.ompi_mpi_datatype_null)
#define MPI_DOUBLE ((MPI_Datatype)mpi.ompi_mpi_double)
#define MPI_DOUBLE_COMPLEX ((MPI_Datatype)mpi.ompi_mpi_dblcplex)
#define MPI_DOUBLE_INT ((MPI_Datatype)mpi.ompi_mpi_double_int)
#define MPI_DOUBLE_PRECISION ((MPI_Datatype)mpi.ompi_mpi_dblprec)
#define MPI_ERR_COUNT 2
#define MPI_ERR_IN_STATUS 18
#define MPI_ERR_NO_MEM 39
#define MPI_ERR_OP 10
#define MPI_ERR_OTHER 16
#define MPI_ERR_REQUEST 7
#define MPI_ERR_TRUNCATE 15
#define MPI_ERRORS_ARE_FATAL ((MPI_Errhandler)mpi.ompi_mpi_errors_are_fatal)
#define MPI_FLOAT ((MPI_Datatype)mpi.ompi_mpi_float)
#define MPI_FLOAT_INT ((MPI_Datatype)mpi.ompi_mpi_float_int)
#define MPI_INT ((MPI_Datatype)mpi.ompi_mpi_int)
#define MPI_2INT ((MPI_Datatype)mpi.ompi_mpi_2int)
#define MPI_2INTEGER ((MPI_Datatype)mpi.ompi_mpi_2integer)
#define MPI_INT16_T ((MPI_Datatype)mpi.ompi_mpi_int16_t)
#define MPI_INT32_T ((MPI_Datatype)mpi.ompi_mpi_int32_t)
#define MPI_INT64_T ((MPI_Datatype)mpi.ompi_mpi_int64_t)
#define MPI_INT8_T ((MPI_Datatype)mpi.ompi_mpi_int8_t)
#define MPI_INTEGER ((MPI_Datatype)mpi.ompi_mpi_integer)
#define MPI_INTEGER1 ((MPI_Datatype)mpi.ompi_mpi_integer1)
#define MPI_INTEGER2 ((MPI_Datatype)mpi.ompi_mpi_integer2)
#define MPI_INTEGER4 ((MPI_Datatype)mpi.ompi_mpi_integer4)
#define MPI_INTEGER8 ((MPI_Datatype)mpi.ompi_mpi_integer8)
#define MPI_IN_PLACE ((void *)1)
#define MPI_KEYVAL_INVALID (-1)
#define MPI_LAND ((MPI_Op)mpi.ompi_mpi_op_land)
#define MPI_LONG ((MPI_Datatype)mpi.ompi_mpi_long)
#define MPI_LONG_INT ((MPI_Datatype)mpi.ompi_mpi_long_int)
#define MPI_LONG_LONG ((MPI_Datatype)mpi.ompi_mpi_long_long_int)
#define MPI_LOR ((MPI_Op)mpi.ompi_mpi_op_lor)
#define MPI_LXOR ((MPI_Op)mpi.ompi_mpi_op_lxor)
#define MPI_MAX ((MPI_Op)mpi.ompi_mpi_op_max)
#define MPI_MAXLOC ((MPI_Op)mpi.ompi_mpi_op_maxloc)
#define MPI_MAX_ERROR_STRING 256
#define MPI_MAX_LIBRARY_VERSION_STRING 256
#define MPI_MAX_OBJECT_NAME 64
#define MPI_MAX_PROCESSOR_NAME 256
#define MPI_MIN ((MPI_Op)mpi.ompi_mpi_op_min)
#define MPI_MINLOC ((MPI_Op)mpi.ompi_mpi_op_minloc)
#define MPI_OFFSET ((MPI_Datatype)mpi.ompi_mpi_offset)
#define MPI_OP_NULL ((MPI_Op)mpi.ompi_mpi_op_null)
#define MPI_PROC_NULL (-2)
#define MPI_PROD ((MPI_Op)mpi.ompi_mpi_op_prod)
#define MPI_REAL ((MPI_Datatype)mpi.ompi_mpi_real)
#define MPI_REAL4 ((MPI_Datatype)mpi.ompi_mpi_real4)
#define MPI_REAL8 ((MPI_Datatype)mpi.ompi_mpi_real8)
#define MPI_REQUEST_NULL ((MPI_Request)mpi.ompi_request_null)
#define MPI_SHORT ((MPI_Datatype)mpi.ompi_mpi_short)
#define MPI_SHORT_INT ((MPI_Datatype)mpi.ompi_mpi_short_int)
#define MPI_SIGNED_CHAR ((MPI_Datatype)mpi.ompi_mpi_signed_char)
#define MPI_STATUSES_IGNORE ((MPI_Status *)0)
#define MPI_STATUS_IGNORE ((MPI_Status *)0)
#define MPI_SUCCESS 0
#define MPI_SUM ((MPI_Op)mpi.ompi_mpi_op_sum)
#define MPI_TAG_UB 0
#define MPI_UINT16_T ((MPI_Datatype)mpi.ompi_mpi_uint16_t)
#define MPI_UINT32_T ((MPI_Datatype)mpi.ompi_mpi_uint32_t)
#define MPI_UINT64_T ((MPI_Datatype)mpi.ompi_mpi_uint64_t)
#define MPI_UINT8_T ((MPI_Datatype)mpi.ompi_mpi_uint8_t)
#define MPI_UNDEFINED (-32766)
#define MPI_UNSIGNED ((MPI_Datatype)mpi.ompi_mpi_unsigned)
#define MPI_UNSIGNED_CHAR ((MPI_Datatype)mpi.ompi_mpi_unsigned_char)
#define MPI_UNSIGNED_LONG ((MPI_Datatype)mpi.ompi_mpi_unsigned_long)
#define MPI_UNSIGNED_LONG_LONG ((MPI_Datatype)mpi.ompi_mpi_unsigned_long_long)
#define MPI_UNSIGNED_SHORT ((MPI_Datatype)mpi.ompi_mpi_unsigned_short)
#define MPI_GRAPH 2
#define MPI_CART 1
#define MPI_DIST_GRAPH 3

/* The variables of the MPI library whose addresses are handles. */
#define MPI_VARIABLES(X) \
    X(ompi_mpi_2int) X(ompi_mpi_2integer) X(ompi_mpi_aint) X(ompi_mpi_byte) X(ompi_mpi_c_bool) \
    X(ompi_mpi_c_double_complex) X(ompi_mpi_c_float_complex) X(ompi_mpi_comm_null) X(ompi_mpi_comm_self) \
    X(ompi_mpi_comm_world) X(ompi_mpi_complex16) X(ompi_mpi_complex8) X(ompi_mpi_count) X(ompi_mpi_cplex) \
    X(ompi_mpi_cxx_cplex) X(ompi_mpi_cxx_dblcplex) X(ompi_mpi_datatype_null) X(ompi_mpi_dblcplex) X(ompi_mpi_dblprec) \
    X(ompi_mpi_double) X(ompi_mpi_double_int) X(ompi_mpi_errors_are_fatal) X(ompi_mpi_float) X(ompi_mpi_float_int) \
    X(ompi_mpi_int) X(ompi_mpi_int16_t) X(ompi_mpi_int32_t) X(ompi_mpi_int64_t) X(ompi_mpi_int8_t) \
    X(ompi_mpi_integer) X(ompi_mpi_integer1) X(ompi_mpi_integer2) X(ompi_mpi_integer4) X(ompi_mpi_integer8) \
    X(ompi_mpi_long) X(ompi_mpi_long_int) X(ompi_mpi_long_long_int) X(ompi_mpi_offset) X(ompi_mpi_op_band) \
    X(ompi_mpi_op_bor) X(ompi_mpi_op_bxor) X(ompi_mpi_op_land) X(ompi_mpi_op_lor) X(ompi_mpi_op_lxor) \
    X(ompi_mpi_op_max) X(ompi_mpi_op_maxloc) X(ompi_mpi_op_min) X(ompi_mpi_op_minloc) X(ompi_mpi_op_null) \
    X(ompi_mpi_op_prod) X(ompi_mpi_op_sum) X(ompi_mpi_real) X(ompi_mpi_real4) X(ompi_mpi_real8) X(ompi_mpi_short) \
    X(ompi_mpi_short_int) X(ompi_mpi_signed_char) X(ompi_mpi_uint16_t) X(ompi_mpi_uint32_t) X(ompi_mpi_uint64_t) \
    X(ompi_mpi_uint8_t) X(ompi_mpi_unsigned) X(ompi_mpi_unsigned_char) X(ompi_mpi_unsigned_long) \
    X(ompi_mpi_unsigned_long_long) X(ompi_mpi_unsigned_short) X(ompi_request_null)

#include "../functions.h"

#endif
