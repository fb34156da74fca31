/* baton-decode: a node that is preferred for decoding, and can compute prompts as well. */
#include "decode_node/decode.h"
#include "node/program.h"
#include "prefill_node/prefill.h"

int main(int argc, char **argv)
{
    static const struct node_program program = {.name = "baton-decode",
                                                .section = "decode",
                                                .role = NODE_ROLE_DECODE,
                                                .prefill = &prefill_leg,
                                                .decode = &decode_leg};
    return node_program_run(&program, argc, argv);
}
