/* baton-router. See program.h. */
#include "router/program.h"

int main(int argc, char **argv)
{
    return router_program_run(argc, argv);
}
