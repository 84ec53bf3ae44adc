/*
 * operators.c: MPI's predefined operators and datatypes as liboutboard's.
 *
 * MPI's table (MPI 4.1, section 6.9.2) defines the operators of each datatype. Others are the program's own
 * (own_operators.c): its operators and datatypes, and what liboutboard has no arithmetic for, like long double.
 */
#include "operators.h"

/* Kinds of datatypes; each has its own defined operators. */
enum kind { INTEGER = 1, FLOAT = 2, COMPLEX = 4, PAIR = 8, LOGICAL = 16, BYTES = 32 };

struct known_operator {
    MPI_Op op;
    enum outboard_operator operator;
    int kinds;
};

struct known_type {
    MPI_Datatype type;
    enum kind kind;
    enum outboard_element element;
};

/* Looks a handle up in the table `all`. */
#define FIND(handle, wanted, found)                                                                                    \
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)                                                              \
        if (all[i].handle == (wanted)) {                                                                               \
            *(found) = all[i];                                                                                         \
            return true;                                                                                               \
        }                                                                                                              \
    return false

/* The handles are addresses in the MPI library, or calls of it, so the tables are not constants. */
static bool find_operator(MPI_Op op, struct known_operator *found)
{
    const struct known_operator all[] = {
        {MPI_SUM, OUTBOARD_SUM, INTEGER | FLOAT | COMPLEX},
        {MPI_PROD, OUTBOARD_PRODUCT, INTEGER | FLOAT | COMPLEX},
        {MPI_MIN, OUTBOARD_MINIMUM, INTEGER | FLOAT},
        {MPI_MAX, OUTBOARD_MAXIMUM, INTEGER | FLOAT},
        {MPI_MINLOC, OUTBOARD_MINIMUM_LOCATION, PAIR},
        {MPI_MAXLOC, OUTBOARD_MAXIMUM_LOCATION, PAIR},
        {MPI_BAND, OUTBOARD_BIT_AND, INTEGER | BYTES},
        {MPI_BOR, OUTBOARD_BIT_OR, INTEGER | BYTES},
        {MPI_BXOR, OUTBOARD_BIT_XOR, INTEGER | BYTES},
        {MPI_LAND, OUTBOARD_LOGICAL_AND, INTEGER | LOGICAL},
        {MPI_LOR, OUTBOARD_LOGICAL_OR, INTEGER | LOGICAL},
        {MPI_LXOR, OUTBOARD_LOGICAL_XOR, INTEGER | LOGICAL},
    };
    FIND(op, op, found);
}

/* The element for an integer of the language or the MPI library, by its size. */
static enum outboard_element integer(size_t bytes, bool is_signed)
{
    switch (bytes) {
    case 1:
        return is_signed ? OUTBOARD_I8 : OUTBOARD_U8;
    case 2:
        return is_signed ? OUTBOARD_I16 : OUTBOARD_U16;
    case 4:
        return is_signed ? OUTBOARD_I32 : OUTBOARD_U32;
    default:
        return is_signed ? OUTBOARD_I64 : OUTBOARD_U64;
    }
}

#define SIGNED(mpi, c) {mpi, INTEGER, integer(sizeof(c), true)}
#define UNSIGNED(mpi, c) {mpi, INTEGER, integer(sizeof(c), false)}

static bool find_type(MPI_Datatype type, struct known_type *found)
{
    const struct known_type all[] = {
        SIGNED(MPI_INT, int), SIGNED(MPI_LONG, long), SIGNED(MPI_LONG_LONG, long long), SIGNED(MPI_SHORT, short),
        SIGNED(MPI_SIGNED_CHAR, signed char), SIGNED(MPI_INT8_T, int8_t), SIGNED(MPI_INT16_T, int16_t),
        SIGNED(MPI_INT32_T, int32_t), SIGNED(MPI_INT64_T, int64_t), SIGNED(MPI_AINT, MPI_Aint),
        SIGNED(MPI_OFFSET, MPI_Offset), SIGNED(MPI_COUNT, MPI_Count), SIGNED(MPI_INTEGER, int),
        SIGNED(MPI_INTEGER1, int8_t), SIGNED(MPI_INTEGER2, int16_t), SIGNED(MPI_INTEGER4, int32_t),
        SIGNED(MPI_INTEGER8, int64_t), UNSIGNED(MPI_UNSIGNED, unsigned), UNSIGNED(MPI_UNSIGNED_LONG, unsigned long),
        UNSIGNED(MPI_UNSIGNED_LONG_LONG, unsigned long long), UNSIGNED(MPI_UNSIGNED_SHORT, unsigned short),
        UNSIGNED(MPI_UNSIGNED_CHAR, unsigned char), UNSIGNED(MPI_UINT8_T, uint8_t), UNSIGNED(MPI_UINT16_T, uint16_t),
        UNSIGNED(MPI_UINT32_T, uint32_t), UNSIGNED(MPI_UINT64_T, uint64_t),
        {MPI_C_BOOL, LOGICAL, integer(sizeof(bool), false)}, {MPI_BYTE, BYTES, OUTBOARD_U8},
        {MPI_DOUBLE, FLOAT, OUTBOARD_F64},
        {MPI_FLOAT, FLOAT, OUTBOARD_F32},
        {MPI_REAL, FLOAT, OUTBOARD_F32},
        {MPI_DOUBLE_PRECISION, FLOAT, OUTBOARD_F64},
        {MPI_REAL4, FLOAT, OUTBOARD_F32},
        {MPI_REAL8, FLOAT, OUTBOARD_F64},
        {MPI_C_FLOAT_COMPLEX, COMPLEX, OUTBOARD_COMPLEX_F32},
        {MPI_C_DOUBLE_COMPLEX, COMPLEX, OUTBOARD_COMPLEX_F64},
        {MPI_CXX_FLOAT_COMPLEX, COMPLEX, OUTBOARD_COMPLEX_F32},
        {MPI_CXX_DOUBLE_COMPLEX, COMPLEX, OUTBOARD_COMPLEX_F64},
        {MPI_COMPLEX, COMPLEX, OUTBOARD_COMPLEX_F32},
        {MPI_DOUBLE_COMPLEX, COMPLEX, OUTBOARD_COMPLEX_F64},
        {MPI_COMPLEX8, COMPLEX, OUTBOARD_COMPLEX_F32},
        {MPI_COMPLEX16, COMPLEX, OUTBOARD_COMPLEX_F64},
        {MPI_FLOAT_INT, PAIR, OUTBOARD_F32_INDEX},
        {MPI_DOUBLE_INT, PAIR, OUTBOARD_F64_INDEX},
        {MPI_LONG_INT, PAIR, OUTBOARD_I64_INDEX},
        {MPI_2INT, PAIR, OUTBOARD_I32_INDEX},
        {MPI_2INTEGER, PAIR, OUTBOARD_I32_INDEX},
        {MPI_SHORT_INT, PAIR, OUTBOARD_I16_INDEX},
    };
    FIND(type, type, found);
}

/* The width of a Fortran default real or integer depends on compiler options. The extent, which is the size of an
 * element in an array, must equal the size that liboutboard assumes. */
static uint64_t element_bytes(enum outboard_element element)
{
    static const uint64_t bytes[] = {
        [OUTBOARD_I8] = 1,           [OUTBOARD_I16] = 2,          [OUTBOARD_I32] = 4,       [OUTBOARD_I64] = 8,
        [OUTBOARD_U8] = 1,           [OUTBOARD_U16] = 2,          [OUTBOARD_U32] = 4,       [OUTBOARD_U64] = 8,
        [OUTBOARD_F16] = 2,          [OUTBOARD_BF16] = 2,         [OUTBOARD_F32] = 4,       [OUTBOARD_F64] = 8,
        [OUTBOARD_COMPLEX_F32] = 8,  [OUTBOARD_COMPLEX_F64] = 16, [OUTBOARD_F32_INDEX] = 8, [OUTBOARD_F64_INDEX] = 16,
        [OUTBOARD_I64_INDEX] = 16,   [OUTBOARD_I32_INDEX] = 8,    [OUTBOARD_I16_INDEX] = 8,
    };
    return bytes[element];
}

static bool find_reduction(MPI_Op op, MPI_Datatype type, struct reduction *reduction)
{
    struct known_operator operator;
    struct known_type known;
    MPI_Count lb, extent;
    if (type == MPI_DATATYPE_NULL || !find_operator(op, &operator) ||
        !find_type(type, &known) || (operator.kinds & known.kind) == 0 ||
        mpi.Type_get_extent_x(type, &lb, &extent) != MPI_SUCCESS)
        return false;
    *reduction = (struct reduction){operator.operator, known.element, element_bytes(known.element)};
    return lb == 0 && (uint64_t)extent == reduction->element_bytes;
}

/* The latest result is kept, since predefined handles stay valid. */
static bool predefined_reduction_of(MPI_Op op, MPI_Datatype type, struct reduction *reduction)
{
    static _Thread_local struct {
        MPI_Op op;
        MPI_Datatype type;
        struct reduction reduction;
    } latest;
    if (latest.op == op && latest.type == type && type != (MPI_Datatype)0) {
        *reduction = latest.reduction;
        return true;
    }
    if (!find_reduction(op, type, reduction))
        return false;
    latest.op = op;
    latest.type = type;
    latest.reduction = *reduction;
    return true;
}

bool reduction_of(MPI_Op op, MPI_Datatype type, struct reduction *reduction)
{
    return predefined_reduction_of(op, type, reduction) || own_reduction_of(op, type, reduction);
}

bool reduction_is_own(MPI_Op op, MPI_Datatype type)
{
    struct reduction reduction;
    return !predefined_reduction_of(op, type, &reduction);
}
