/*
 * options.h: the words NAME=VALUE that the harness starts a measuring program with.
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdint.h>

/* An option and the one place that its value goes to: as it is, or as a number. */
struct option {
    const char *name;
    const char **text;
    int *number;
    int64_t *long_number;
};

/* Puts the value of each word in its place; options that are not named leave theirs as it is. Either list ends with one
 * that has no name. 0, or -1 for a word that is in neither; prints the reason. */
int options_read(int argc, char **argv, const struct option *common, const struct option *own);
/* The decimal number at the beginning of a text, and what follows it. 0, or -1 where there is none; prints the reason.
 * */
int number_read(const char *text, int64_t *value, const char **rest);

#endif
