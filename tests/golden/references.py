"""The two reference implementations, as the golden scripts need them. Imported by the scripts beside it; never at test time.

transformers reads the GGUF file, but ignores `tokenizer.ggml.pre`: its tokenizer is repaired here with the split into single
digits that `smollm` asks for. llama.cpp (libllama, through ctypes) is the second witness. Its parameter structures are passed
as opaque blocks, larger than they are, with their defaults: the C ABI copies them by value and the library reads its part.
"""
import ctypes
import os
import re


def tokenizer_load(model_path):
    """transformers' fast tokenizer for the file, repaired. Returns (tokenizer, backend)."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer
    folder, name = os.path.split(os.path.abspath(model_path))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    return tokenizer


def model_load(model_path, threads=2):
    """transformers in float32 on the dequantised weights."""
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(threads)
    folder, name = os.path.split(os.path.abspath(model_path))
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    return model.eval()


class Opaque(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint32 * 256)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)),
                ("embd", ctypes.POINTER(ctypes.c_float)), ("pos", ctypes.POINTER(ctypes.c_int32)),
                ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
                ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
                ("logits", ctypes.POINTER(ctypes.c_int8))]


class Llama:
    """libllama on one file: tokenize, and logits of every position of a sequence."""

    def __init__(self, library_folder, model_path):
        for name in ("libggml-base", "libggml-cpu", "libggml", "libllama"):
            file = sorted(f for f in os.listdir(library_folder) if re.match(name + r"\.so", f))[-1]
            lib = ctypes.CDLL(os.path.join(library_folder, file), mode=ctypes.RTLD_GLOBAL)
        self.lib = lib
        for name in ("llama_model_default_params", "llama_context_default_params"):
            getattr(lib, name).restype = Opaque
        for name in ("llama_model_load_from_file", "llama_model_get_vocab", "llama_init_from_model",
                     "llama_get_memory"):
            getattr(lib, name).restype = ctypes.c_void_p
        lib.llama_log_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p,
                                                  ctypes.c_void_p)(lambda *a: None)
        lib.llama_log_set(lib.llama_log_callback, None)
        lib.llama_backend_init()
        self.model = ctypes.c_void_p(lib.llama_model_load_from_file(
            os.fsencode(model_path), lib.llama_model_default_params()))
        self.vocab = ctypes.c_void_p(lib.llama_model_get_vocab(self.model))
        self.vocab_size = lib.llama_vocab_n_tokens(self.vocab)
        self.context = None

    def tokenize(self, text, parse_special):
        raw = text.encode()
        out = (ctypes.c_int32 * (len(raw) + 8))()
        n = self.lib.llama_tokenize(self.vocab, raw, len(raw), out, len(out), False, parse_special)
        assert n >= 0
        return list(out[:n])

    def end_ids(self):
        return [i for i in range(self.vocab_size)
                if self.lib.llama_vocab_is_eog(self.vocab, i) & 1]

    def logits(self, ids, threads=2):
        """float32 [positions][vocab] of one sequence of at most 512 tokens."""
        import numpy as np
        assert 0 < len(ids) <= 512
        lib = self.lib
        if not self.context:
            self.context = ctypes.c_void_p(lib.llama_init_from_model(
                self.model, lib.llama_context_default_params()))
            lib.llama_set_n_threads(self.context, threads, threads)
            lib.llama_batch_init.restype = Batch
            lib.llama_get_logits.restype = ctypes.POINTER(ctypes.c_float)
        lib.llama_memory_clear(ctypes.c_void_p(lib.llama_get_memory(self.context)), True)
        batch = lib.llama_batch_init(512, 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        assert lib.llama_decode(self.context, batch) == 0
        out = np.ctypeslib.as_array(lib.llama_get_logits(self.context),
                                    (len(ids), self.vocab_size)).copy()
        lib.llama_batch_free(batch)
        return out
