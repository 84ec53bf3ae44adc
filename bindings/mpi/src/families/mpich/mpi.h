/*
 * mpi.h: the types and constants of MPICH 4 and 5 and of Intel MPI 2021, as far as the shim uses them. Its handles are
 * numbers. The tests compare this file with an installed mpi.h (tests/headers.c).
 */
#ifndef OUTBOARD_MPI_FAMILY_MPICH_H
#define OUTBOARD_MPI_FAMILY_MPICH_H

#include <stddef.h>
#include <stdint.h>

typedef long MPI_Aint;
typedef long long MPI_Count, MPI_Offset;
typedef int MPI_Comm, MPI_Datatype, MPI_Errhandler, MPI_Group, MPI_Info, MPI_Op, MPI_Request;

typedef struct {
    int internal[2];
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
} MPI_Status;

/* Every probe polls. */
#define PROBES_FOR_PROGRESS 1

#define MPI_AINT ((MPI_Datatype)0x4c000843)
#define MPI_ANY_SOURCE (-2)
#define MPI_ANY_TAG (-1)
#define MPI_BAND ((MPI_Op)0x58000006)
#define MPI_BOR ((MPI_Op)0x58000008)
#define MPI_BOTTOM ((void *)0)
#define MPI_BXOR ((MPI_Op)0x5800000a)
#define MPI_BYTE ((MPI_Datatype)0x4c00010d)
#define MPI_COMBINER_CONTIGUOUS 3
#define MPI_COMBINER_DUP 2
#define MPI_COMBINER_NAMED 1
#define MPI_COMM_NULL ((MPI_Comm)0x04000000)
#define MPI_COMM_SELF ((MPI_Comm)0x44000001)
#define MPI_COMM_WORLD ((MPI_Comm)0x44000000)
#define MPI_COMPLEX ((MPI_Datatype)0x4c00081e)
#define MPI_COMPLEX16 ((MPI_Datatype)0x4c00102a)
#define MPI_COMPLEX8 ((MPI_Datatype)0x4c000828)
#define MPI_COUNT ((MPI_Datatype)0x4c000845)
#define MPI_CXX_DOUBLE_COMPLEX ((MPI_Datatype)0x4c001035)
#define MPI_CXX_FLOAT_COMPLEX ((MPI_Datatype)0x4c000834)
#define MPI_C_BOOL ((MPI_Datatype)0x4c00013f)
#define MPI_C_DOUBLE_COMPLEX ((MPI_Datatype)0x4c001041)
#define MPI_C_FLOAT_COMPLEX ((MPI_Datatype)0x4c000840)
#define MPI_DATATYPE_NULL ((MPI_Datatype)0x0c000000)
#define MPI_DOUBLE ((MPI_Datatype)0x4c00080b)
#define MPI_DOUBLE_COMPLEX ((MPI_Datatype)0x4c001022)
#define MPI_DOUBLE_INT ((MPI_Datatype)0x8c000001)
#define MPI_DOUBLE_PRECISION ((MPI_Datatype)0x4c00081f)
#define MPI_ERR_COUNT 2
#define MPI_ERR_IN_STATUS 17
#define MPI_ERR_NO_MEM 34
#define MPI_ERR_OP 9
#define MPI_ERR_OTHER 15
#define MPI_ERR_REQUEST 19
#define MPI_ERR_TRUNCATE 14
#define MPI_ERRORS_ARE_FATAL ((MPI_Errhandler)0x54000000)
#define MPI_FLOAT ((MPI_Datatype)0x4c00040a)
#define MPI_FLOAT_INT ((MPI_Datatype)0x8c000000)
#define MPI_INT ((MPI_Datatype)0x4c000405)
#define MPI_2INT ((MPI_Datatype)0x4c000816)
#define MPI_2INTEGER ((MPI_Datatype)0x4c000820)
#define MPI_INT16_T ((MPI_Datatype)0x4c000238)
#define MPI_INT32_T ((MPI_Datatype)0x4c000439)
#define MPI_INT64_T ((MPI_Datatype)0x4c00083a)
#define MPI_INT8_T ((MPI_Datatype)0x4c000137)
#define MPI_INTEGER ((MPI_Datatype)0x4c00041b)
#define MPI_INTEGER1 ((MPI_Datatype)0x4c00012d)
#define MPI_INTEGER2 ((MPI_Datatype)0x4c00022f)
#define MPI_INTEGER4 ((MPI_Datatype)0x4c000430)
#define MPI_INTEGER8 ((MPI_Datatype)0x4c000831)
#define MPI_IN_PLACE ((void *)-1)
#define MPI_KEYVAL_INVALID 0x24000000
#define MPI_LAND ((MPI_Op)0x58000005)
#define MPI_LONG ((MPI_Datatype)0x4c000807)
#define MPI_LONG_INT ((MPI_Datatype)0x8c000002)
#define MPI_LONG_LONG ((MPI_Datatype)0x4c000809)
#define MPI_LOR ((MPI_Op)0x58000007)
#define MPI_LXOR ((MPI_Op)0x58000009)
#define MPI_MAX ((MPI_Op)0x58000001)
#define MPI_MAXLOC ((MPI_Op)0x5800000c)
#define MPI_MAX_ERROR_STRING 512
#define MPI_MAX_LIBRARY_VERSION_STRING 8192
#define MPI_MAX_OBJECT_NAME 128
#define MPI_MAX_PROCESSOR_NAME 128
#define MPI_MIN ((MPI_Op)0x58000002)
#define MPI_MINLOC ((MPI_Op)0x5800000b)
#define MPI_OFFSET ((MPI_Datatype)0x4c000844)
#define MPI_OP_NULL ((MPI_Op)0x18000000)
#define MPI_PROC_NULL (-1)
#define MPI_PROD ((MPI_Op)0x58000004)
#define MPI_REAL ((MPI_Datatype)0x4c00041c)
#define MPI_REAL4 ((MPI_Datatype)0x4c000427)
#define MPI_REAL8 ((MPI_Datatype)0x4c000829)
#define MPI_REQUEST_NULL ((MPI_Request)0x2c000000)
#define MPI_SHORT ((MPI_Datatype)0x4c000203)
#define MPI_SHORT_INT ((MPI_Datatype)0x8c000003)
#define MPI_SIGNED_CHAR ((MPI_Datatype)0x4c000118)
#define MPI_STATUSES_IGNORE ((MPI_Status *)1)
#define MPI_STATUS_IGNORE ((MPI_Status *)1)
#define MPI_SUCCESS 0
#define MPI_SUM ((MPI_Op)0x58000003)
#define MPI_TAG_UB 0x64400001
#define MPI_UINT16_T ((MPI_Datatype)0x4c00023c)
#define MPI_UINT32_T ((MPI_Datatype)0x4c00043d)
#define MPI_UINT64_T ((MPI_Datatype)0x4c00083e)
#define MPI_UINT8_T ((MPI_Datatype)0x4c00013b)
#define MPI_UNDEFINED (-32766)
#define MPI_UNSIGNED ((MPI_Datatype)0x4c000406)
#define MPI_UNSIGNED_CHAR ((MPI_Datatype)0x4c000102)
#define MPI_UNSIGNED_LONG ((MPI_Datatype)0x4c000808)
#define MPI_UNSIGNED_LONG_LONG ((MPI_Datatype)0x4c000819)
#define MPI_UNSIGNED_SHORT ((MPI_Datatype)0x4c000204)
#define MPI_GRAPH 1
#define MPI_CART 2
#define MPI_DIST_GRAPH 3

/* No handle is the address of a variable. */
#define MPI_VARIABLES(X)

#include "../functions.h"

#endif
