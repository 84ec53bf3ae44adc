/* options.c: see options.h. */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int number_read(const char *text, int64_t *value, const char **rest)
{
    char *end = NULL;
    *value = strtoll(text, &end, 10);
    *rest = end;
    if (end == text)
        fprintf(stderr, "not a number: %s\n", text);
    return end == text ? -1 : 0;
}

static int option_read(const struct option *option, const char *text)
{
    const char *rest = "";
    int64_t value = 0;
    if (option->text != NULL) {
        *option->text = text;
        return 0;
    }
    if (number_read(text, &value, &rest) != 0)
        return -1;
    if (option->number != NULL)
        *option->number = (int)value;
    else
        *option->long_number = value;
    return 0;
}

int options_read(int argc, char **argv, const struct option *known)
{
    for (int at = 1; at < argc; at++) {
        const size_t length = strcspn(argv[at], "=");
        const struct option *option = known;
        while (option->name != NULL && (strlen(option->name) != length || strncmp(option->name, argv[at], length) != 0))
            option++;
        if (option->name == NULL || argv[at][length] == '\0') {
            fprintf(stderr, "no option NAME=VALUE: %s\n", argv[at]);
            return -1;
        }
        if (option_read(option, argv[at] + length + 1) != 0)
            return -1;
    }
    return 0;
}
