/* getaddrinfo for names that end in ".test": a file has the addresses and may change at any time.
 *
 * Load it before libc (LD_PRELOAD), so that libpq, librdkafka and Python all call it. NAMES_FILE has a line
 * "name address" for each name that resolves; any other name is logged to NAMES_ASKED and fails with EAI_NONAME.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*resolver)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

static int is_found(const char *node, char *address)
{
    char name[256];
    int found = 0;
    FILE *file = fopen(getenv("NAMES_FILE"), "r");
    while (file != NULL && !found && fscanf(file, "%255s %63s", name, address) == 2)
        found = strcmp(name, node) == 0;
    if (file != NULL)
        fclose(file);
    return found;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res)
{
    resolver next = (resolver)dlsym(RTLD_NEXT, "getaddrinfo");
    const char *end = node == NULL ? NULL : strrchr(node, '.');
    char address[64], line[258];
    if (end == NULL || strcmp(end, ".test") != 0)
        return next(node, service, hints, res);
    if (is_found(node, address))
        return next(address, service, hints, res);
    int asked = open(getenv("NAMES_ASKED"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    int size = snprintf(line, sizeof line, "%s\n", node);
    if (asked >= 0 && size > 0 && write(asked, line, (size_t)size) < 0)
        perror("NAMES_ASKED");
    if (asked >= 0)
        close(asked);
    return EAI_NONAME;
}
