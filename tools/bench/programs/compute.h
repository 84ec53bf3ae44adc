/*
 * compute.h: the compute loop of all programs. Its object file is built once. The calibrating program and every
 * system's measuring program link it, so that a number of units means the same work everywhere.
 */
#ifndef COMPUTE_H
#define COMPUTE_H

#include <stdint.h>

/* Does `units` units of floating-point work in the first-level cache: no memory traffic, no system call. */
void compute_units(uint64_t units);

#endif
