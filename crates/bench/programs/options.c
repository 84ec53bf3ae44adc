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

/* The option whose name is so long a part of the word, or the nameless one at the end. */
static const struct option *option_named(const struct option *list, const char *word, size_t length)
{
    while (list->name != NULL && (strlen(list->name) != length || strncmp(list->name, word, length) != 0))
        list++;
    return list;
}

int options_read(int argc, char **argv, const struct option *common, const struct option *own)
{
    for (int at = 1; at < argc; at++) {
        const size_t length = strcspn(argv[at], "=");
        const struct option *option = option_named(common, argv[at], length);
        if (option->name == NULL)
            option = option_named(own, argv[at], length);
        if (option->name == NULL || argv[at][length] == '\0') {
            fprintf(stderr, "no option NAME=VALUE: %s\n", argv[at]);
            return -1;
        }
        if (option_read(option, argv[at] + length + 1) != 0)
            return -1;
    }
    return 0;
}
