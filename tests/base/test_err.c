#include "base/err.h"
#include "base/buf.h"
#include "tests/test.h"

TEST(err, wraps_from_the_inside_out)
{
    struct err err = ERR_INIT;
    CHECK_INT(err_set(&err, STATUS_FORMAT, "offset %d is past the end of the file (%d)", 91, 90),
              STATUS_FORMAT);
    CHECK_INT(err_wrap(&err, "tensor %s", "blk.3"), STATUS_FORMAT);
    CHECK_INT(err_wrap(&err, "model.gguf"), STATUS_FORMAT);
    CHECK_STR(err.message, "model.gguf: tensor blk.3: offset 91 is past the end of the file (90)");
}

TEST(err, long_text_is_cut_and_terminated)
{
    struct err err = ERR_INIT;
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    err_set(&err, STATUS_IO, "%s", text);
    CHECK_INT(strlen(err.message), ERR_MESSAGE_BYTES - 1);
    err_wrap(&err, "%s", text);
    CHECK_INT(strlen(err.message), ERR_MESSAGE_BYTES - 1);
}

TEST(err, every_status_has_text_and_label)
{
    for (int i = 0; i < STATUS_COUNT; i++) {
        CHECK(status_text((enum status)i)[0]);
        for (int j = 0; j < i; j++)
            CHECK(strcmp(status_label((enum status)i), status_label((enum status)j)) != 0);
    }
    CHECK_INT(status_grpc(STATUS_FULL), GRPC_CODE_RESOURCE_EXHAUSTED);
    CHECK_INT(status_grpc(STATUS_SLOW_CLIENT), GRPC_CODE_CANCELLED);
}

TEST(buf, appends_formats_and_consumes)
{
    struct buf buf = BUF_INIT;
    for (int i = 0; i < 1000; i++)
        buf_printf(&buf, "%03d,", i);
    CHECK_INT(buf.bytes, 4000);
    buf_consume(&buf, 3996);
    buf_append(&buf, "", 1);
    CHECK_STR((char *)buf.data, "999,");
    buf_finish(&buf);
}
