/* See faults.h: what production builds have of it. */
#include "base/faults.h"

bool faults_built(void)
{
    return false;
}

enum status faults_create(const char *spec, struct faults **faults_out, struct err *err)
{
    (void)spec;
    (void)faults_out;
    return err_set(err, STATUS_UNIMPLEMENTED, "faults: this build injects none (-Dfaults=true)");
}

void faults_destroy(struct faults *faults)
{
    (void)faults;
}

void faults_declare(const struct faults *faults, struct metrics *metrics)
{
    (void)faults;
    (void)metrics;
}
