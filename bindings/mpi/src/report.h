/*
 * report.h: counts and times for OUTBOARD_MPI_REPORT.
 */
#ifndef OUTBOARD_MPI_REPORT_H
#define OUTBOARD_MPI_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "shim.h"

/* Whether a report will be written; then every call is timed. */
extern bool report_enabled;
/* Sets `report_enabled`; `choice` is the value of OUTBOARD_CHOICE in use. */
void report_enable(bool enabled, const char *choice);
void report_start(const char *native_reason);
void report_count_passed(enum collective collective, enum form form);
void report_add_passed_time(double seconds);
void report_choices(uint64_t digest, int communicators);
void report_add_posted(enum collective collective, enum form form, uint64_t bytes, bool packed, double seconds);
void report_add_waiting(double seconds);
void report_count_failed(void);
void report_count_allocated(void);
/* Collective over MPI_COMM_WORLD. */
void report_write(void);

#endif
