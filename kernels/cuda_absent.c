/* Stands in for kernels/cuda/ where the CUDA backend is not built: `--backend cuda` is refused with a reason. */
#include "kernels/backend.h"

static enum status cuda_open(const struct kern_device_options *options,
                             struct kern_device **device_out, struct err *err)
{
    (void)options;
    (void)device_out;
    return err_set(err, STATUS_CONFIG, "backend: cuda is not part of this build; use cpu");
}

const struct kern_backend kern_backend_cuda = {.name = "cuda", .open = cuda_open};
