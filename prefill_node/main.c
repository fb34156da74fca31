/* baton-prefill: a node that is preferred for prompts, and can decode as well. */
#include "decode_node/decode.h"
#include "node/program.h"
#include "prefill_node/prefill.h"

int main(int argc, char **argv)
{
    static const struct node_program program = {.name = "baton-prefill",
                                                .section = "prefill",
                                                .role = NODE_ROLE_PREFILL,
                                                .prefill = &prefill_leg,
                                                .decode = &decode_leg};
    return node_program_run(&program, argc, argv);
}
