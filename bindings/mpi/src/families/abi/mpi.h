/*
 * mpi.h: the types and constants of the standard ABI of MPI 5.0 (chapter 20), as far as the shim uses them. Its handles
 * are small numbers in pointers. The tests compare this file with an installed mpi_abi.h (tests/headers.c).
 */
#ifndef OUTBOARD_MPI_FAMILY_ABI_H
#define OUTBOARD_MPI_FAMILY_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef intptr_t MPI_Aint;
typedef int64_t MPI_Count, MPI_Offset;
typedef struct MPI_ABI_Comm *MPI_Comm;
typedef struct MPI_ABI_Datatype *MPI_Datatype;
typedef struct MPI_ABI_Errhandler *MPI_Errhandler;
typedef struct MPI_ABI_Group *MPI_Group;
typedef struct MPI_ABI_Info *MPI_Info;
typedef struct MPI_ABI_Op *MPI_Op;
typedef struct MPI_ABI_Request *MPI_Request;

typedef struct {
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
    int internal[5];
} MPI_Status;

/* Open MPI polls its sockets at every eighth probe. */
#define PROBES_FOR_PROGRESS 8

#define MPI_AINT ((MPI_Datatype)0x201)
#define MPI_ANY_SOURCE (-1)
#define MPI_ANY_TAG (-2)
#define MPI_BAND ((MPI_Op)0x28)
#define MPI_BOR ((MPI_Op)0x29)
#define MPI_BOTTOM ((void *)0)
#define MPI_BXOR ((MPI_Op)0x2a)
#define MPI_BYTE ((MPI_Datatype)0x247)
#define MPI_COMBINER_CONTIGUOUS 103
#define MPI_COMBINER_DUP 102
#define MPI_COMBINER_NAMED 101
#define MPI_COMM_NULL ((MPI_Comm)0x100)
#define MPI_COMM_SELF ((MPI_Comm)0x102)
#define MPI_COMM_WORLD ((MPI_Comm)0x101)
#define MPI_COMPLEX ((MPI_Datatype)0x21b)
#define MPI_COMPLEX16 ((MPI_Datatype)0x2e3)
#define MPI_COMPLEX8 ((MPI_Datatype)0x2db)
#define MPI_COUNT ((MPI_Datatype)0x202)
#define MPI_CXX_DOUBLE_COMPLEX ((MPI_Datatype)0x217)
#define MPI_CXX_FLOAT_COMPLEX ((MPI_Datatype)0x213)
#define MPI_C_BOOL ((MPI_Datatype)0x238)
#define MPI_C_DOUBLE_COMPLEX ((MPI_Datatype)0x216)
#define MPI_C_FLOAT_COMPLEX ((MPI_Datatype)0x212)
#define MPI_DATATYPE_NULL ((MPI_Datatype)0x200)
#define MPI_DOUBLE ((MPI_Datatype)0x214)
#define MPI_DOUBLE_COMPLEX ((MPI_Datatype)0x21d)
#define MPI_DOUBLE_INT ((MPI_Datatype)0x229)
#define MPI_DOUBLE_PRECISION ((MPI_Datatype)0x21c)
#define MPI_ERR_COUNT 2
#define MPI_ERR_IN_STATUS 19
#define MPI_ERR_NO_MEM 39
#define MPI_ERR_OP 10
#define MPI_ERR_OTHER 16
#define MPI_ERR_REQUEST 7
#define MPI_ERR_TRUNCATE 15
#define MPI_ERRORS_ARE_FATAL ((MPI_Errhandler)0x141)
#define MPI_FLOAT ((MPI_Datatype)0x210)
#define MPI_FLOAT_INT ((MPI_Datatype)0x228)
#define MPI_INT ((MPI_Datatype)0x209)
#define MPI_2INT ((MPI_Datatype)0x22b)
#define MPI_2INTEGER ((MPI_Datatype)0x232)
#define MPI_INT16_T ((MPI_Datatype)0x248)
#define MPI_INT32_T ((MPI_Datatype)0x250)
#define MPI_INT64_T ((MPI_Datatype)0x258)
#define MPI_INT8_T ((MPI_Datatype)0x240)
#define MPI_INTEGER ((MPI_Datatype)0x219)
#define MPI_INTEGER1 ((MPI_Datatype)0x2c1)
#define MPI_INTEGER2 ((MPI_Datatype)0x2c9)
#define MPI_INTEGER4 ((MPI_Datatype)0x2d1)
#define MPI_INTEGER8 ((MPI_Datatype)0x2d9)
#define MPI_IN_PLACE ((void *)1)
#define MPI_KEYVAL_INVALID 0
#define MPI_LAND ((MPI_Op)0x30)
#define MPI_LONG ((MPI_Datatype)0x20a)
#define MPI_LONG_INT ((MPI_Datatype)0x22a)
#define MPI_LONG_LONG ((MPI_Datatype)0x20b)
#define MPI_LOR ((MPI_Op)0x31)
#define MPI_LXOR ((MPI_Op)0x32)
#define MPI_MAX ((MPI_Op)0x23)
#define MPI_MAXLOC ((MPI_Op)0x39)
#define MPI_MAX_ERROR_STRING 512
#define MPI_MAX_LIBRARY_VERSION_STRING 8192
#define MPI_MAX_OBJECT_NAME 128
#define MPI_MAX_PROCESSOR_NAME 256
#define MPI_MIN ((MPI_Op)0x22)
#define MPI_MINLOC ((MPI_Op)0x38)
#define MPI_OFFSET ((MPI_Datatype)0x203)
#define MPI_OP_NULL ((MPI_Op)0x20)
#define MPI_PROC_NULL (-3)
#define MPI_PROD ((MPI_Op)0x24)
#define MPI_REAL ((MPI_Datatype)0x21a)
#define MPI_REAL4 ((MPI_Datatype)0x2d2)
#define MPI_REAL8 ((MPI_Datatype)0x2da)
#define MPI_REQUEST_NULL ((MPI_Request)0x180)
#define MPI_SHORT ((MPI_Datatype)0x208)
#define MPI_SHORT_INT ((MPI_Datatype)0x22c)
#define MPI_SIGNED_CHAR ((MPI_Datatype)0x244)
#define MPI_STATUSES_IGNORE ((MPI_Status *)0)
#define MPI_STATUS_IGNORE ((MPI_Status *)0)
#define MPI_SUCCESS 0
#define MPI_SUM ((MPI_Op)0x21)
#define MPI_TAG_UB 501
#define MPI_UINT16_T ((MPI_Datatype)0x249)
#define MPI_UINT32_T ((MPI_Datatype)0x251)
#define MPI_UINT64_T ((MPI_Datatype)0x259)
#define MPI_UINT8_T ((MPI_Datatype)0x241)
#define MPI_UNDEFINED (-32766)
#define MPI_UNSIGNED ((MPI_Datatype)0x20d)
#define MPI_UNSIGNED_CHAR ((MPI_Datatype)0x245)
#define MPI_UNSIGNED_LONG ((MPI_Datatype)0x20e)
#define MPI_UNSIGNED_LONG_LONG ((MPI_Datatype)0x20f)
#define MPI_UNSIGNED_SHORT ((MPI_Datatype)0x20c)
#define MPI_GRAPH 212
#define MPI_CART 211
#define MPI_DIST_GRAPH 213

/* No handle is the address of a variable. */
#define MPI_VARIABLES(X)

#include "../functions.h"

#endif
