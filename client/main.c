/* The `baton` program: picks the command. See client.h.
 * Owner: the main thread. */
#include <stdio.h>
#include <string.h>

#include "base/version.h"
#include "client/client.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv); /* NULL: not built yet: refused, and left out of the help */
    const char *help;
};

static const struct command commands[] = {
    {"up", cmd_up, "a whole cluster on this machine, in the foreground"},
    {"generate", cmd_generate, "one prompt, one answer, streamed"},
    {"chat", cmd_chat, "a conversation"},
    {"status", cmd_status, "the nodes of a cluster"},
    {"drain", cmd_drain, "a node finishes its work and leaves"},
    {"role", cmd_role, "a node plays another role"},
    {"inspect", cmd_inspect, "what a model file holds"},
    {"bench", cmd_bench, "what a link between nodes moves"},
    {"top", NULL, NULL},
    {"plan", NULL, NULL},
    {"doctor", NULL, NULL},
    {"replay", NULL, NULL},
    {"profile", NULL, NULL},
    {"scale", NULL, NULL},
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void help(FILE *out)
{
    fprintf(out, "baton: serves large language models from prefill and decode nodes\n\n"
                 "usage: baton COMMAND [OPTIONS]\n\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (commands[i].run)
            fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(out,
            "\n`baton COMMAND --help` shows its options. -s HOST:PORT names the router; by default "
            "BATON_SERVER,\nelse " CLIENT_SERVER_INITIAL ".\n\nexample:\n"
            "  baton up -m model.gguf\n"
            "  baton generate --chat -p \"Why is the sky blue?\"\n");
}

int main(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    if (!word) {
        help(stderr);
        return EXIT_CODE_USAGE;
    }
    if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help")) {
        help(stdout);
        return EXIT_CODE_DONE;
    }
    if (!strcmp(word, "--version")) {
        printf("baton " VERSION_NUMBER " (%s), gRPC %s\n", version_commit, rpc_library_version());
        return EXIT_CODE_DONE;
    }
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, word))
            continue;
        if (commands[i].run)
            return commands[i].run(argc - 1, argv + 1);
        fprintf(stderr, "baton: %s is not built yet; see --help for what is\n", word);
        return EXIT_CODE_USAGE;
    }
    client_complain("baton", "unknown command \"%.40s\"; see --help", word);
    return EXIT_CODE_USAGE;
}
