"""The classes `kernels` swaps in, under the names and with the signatures transformers' modelling files register.

`kernels` takes only the ``forward`` of these classes and binds it to the function module a modelling file calls, so a
class has no constructor and no members of its own. Parameter names, kinds and count are transformers': a call mixes
positional and keyword arguments. Its ``**kwargs`` bring whatever the model was called with, unfiltered; what carries
boundaries or state is honoured, the rest (``use_cache``, ``num_items_in_batch``, ...) has no meaning for a layer.
"""

from typing import Optional

import torch
from torch import nn

from . import boundaries
from .causal_conv1d import causal_conv1d_fn as _fn
from .causal_conv1d import causal_conv1d_update as _update
from .gated_delta_rule import chunk_gated_delta_rule as _chunk
from .gated_delta_rule import chunk_kda as _chunk_kda
from .gated_delta_rule import decoding_step as _step
from .gated_delta_rule import fused_recurrent_gated_delta_rule as _recurrent
from .gated_delta_rule import fused_recurrent_kda as _recurrent_kda
from .selective_scan import mamba_inner_fn as _inner
from .selective_scan import selective_scan_fn as _selective_scan
from .selective_state_update import selective_state_update as _state_update
from .state_space import mamba_chunk_scan_combined as _scan


class causal_conv1d_fn(nn.Module):
    """Causal depthwise convolution over ``(B, D, L)``, with transformers' argument order (``activation`` is fourth)."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor] = None,
        activation: Optional[str] = None,
        **kwargs,
    ):
        """``out[b, d, t] = act(bias[d] + sum_k weight[d, k] * x[b, d, t - (W - 1) + k])``, taps inside one sample only.

        Args:
            hidden_states: ``(B, D, L)``, float32, bfloat16 or float16, any strides.
            weight: ``(D, W)``, W 2 to 4; it may have another dtype (as under autocast), arithmetic is float32.
            bias: ``(D,)`` or None.
            activation: None, ``"silu"`` or ``"swish"``.
            kwargs: ``seq_idx`` ``(B, L)`` int32 separates packed samples; without it ``cu_seq_lens_q`` ``(N + 1,)``
                does. ``initial_states``, ``return_final_states`` and ``final_states_out`` as in the causal-conv1d
                package. Anything else is ignored.

        Raises:
            ValueError: the batch is packed and neither ``seq_idx`` nor ``cu_seq_lens_q`` arrived; ``cu_seq_lens_q``
                does not cover the tokens; or what ``causal_conv1d_fn`` refuses.
        """
        size = hidden_states.shape[0], hidden_states.shape[2]
        seq_idx = boundaries.sequence_index(
            "causal_conv1d_fn", size, kwargs.get("seq_idx"), kwargs.get("cu_seq_lens_q")
        )
        state = {
            name: kwargs[name]
            for name in ("initial_states", "return_final_states", "final_states_out")
            if kwargs.get(name) is not None
        }
        return _fn(hidden_states, weight, bias, seq_idx=seq_idx, activation=activation, **state)


class causal_conv1d_update(nn.Module):
    """One decoding step of the convolution; moves the new columns into ``conv_state`` in place."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        hidden_states: torch.Tensor,
        conv_state: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor] = None,
        activation: Optional[str] = None,
    ):
        """The last columns of ``causal_conv1d_fn(cat(conv_state, hidden_states))``.

        Args:
            hidden_states: ``(B, D, 1)`` or ``(B, D, L)``.
            conv_state: ``(B, D, S)``, S at least W - 1 (transformers keeps W); changed in place, without gradient.
            weight, bias, activation: as in ``causal_conv1d_fn``.

        Raises:
            ValueError: what ``causal_conv1d_update`` refuses.
        """
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (hidden_states, weight, bias)):
            states = torch.cat([conv_state, hidden_states], dim=-1)  # the step's own kernel has no backward
            conv_state.copy_(states[:, :, -conv_state.shape[2] :].detach())
            return _fn(states, weight, bias, activation=activation)[:, :, -hidden_states.shape[2] :]
        return _update(hidden_states, conv_state, weight, bias, activation)


class mamba_chunk_scan_combined(nn.Module):
    """The scan of Mamba 2 over prompts and training samples, with transformers' names."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        chunk_size: int,
        D: Optional[torch.Tensor] = None,
        dt_bias: Optional[torch.Tensor] = None,
        initial_states: Optional[torch.Tensor] = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **kwargs,
    ):
        """See ``mamba_chunk_scan_combined`` of this bundle.

        Args:
            hidden_states: ``(B, T, H, P)``; dt: ``(B, T, H)``; A: ``(H)``; B, C: ``(B, T, G, N)``.
            chunk_size: the kernel chooses its own; no result depends on it but by rounding.
            initial_states: ``(B, H, P, N)``, what the first sample of each row continues.
            kwargs: ``seq_idx`` ``(B, T)`` int32 separates packed samples; without it ``cu_seq_lens_q`` ``(N + 1,)``
                does. ``z`` is the gate. Anything else is ignored.

        Returns:
            ``(B, T, H, P)`` of ``hidden_states``' dtype, with the states after each row where asked for.

        Raises:
            ValueError: the batch is packed and no boundaries arrived; or what ``mamba_chunk_scan_combined`` refuses.
        """
        size = hidden_states.shape[0], hidden_states.shape[1]
        seq_idx = boundaries.sequence_index(
            "mamba_chunk_scan_combined", size, kwargs.get("seq_idx"), kwargs.get("cu_seq_lens_q")
        )
        return _scan(
            hidden_states,
            dt,
            A,
            B,
            C,
            chunk_size,
            D=D,
            z=kwargs.get("z"),
            dt_bias=dt_bias,
            initial_states=initial_states,
            seq_idx=seq_idx,
            dt_softplus=dt_softplus,
            dt_limit=dt_limit,
            return_final_states=return_final_states,
        )


class mamba_split_conv1d_scan_combined(nn.Module):
    """What a Mamba 2 layer asks for first in training: here it sends the layer on to convolution and scan."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        zxbcdt: torch.Tensor,
        conv1d_weight: torch.Tensor,
        conv1d_bias: Optional[torch.Tensor],
        dt_bias: torch.Tensor,
        A: torch.Tensor,
        D: torch.Tensor,
        chunk_size: int,
        initial_states: Optional[torch.Tensor] = None,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        activation: str = "silu",
        rmsnorm_weight: Optional[torch.Tensor] = None,
        rmsnorm_eps: float = 1e-6,
        outproj_weight: Optional[torch.Tensor] = None,
        outproj_bias: Optional[torch.Tensor] = None,
        headdim: Optional[int] = None,
        ngroups: int = 1,
        norm_before_gate: bool = True,
        **kwargs,
    ):
        """None, which transformers' models take for "not fused": they then call their own steps one by one.

        Those are this bundle's convolution and scan, which get the boundaries, and the model's own norm. The fused
        form of mamba_ssm differs from them (its norm is one of each group of channels, which Bamba's and Mamba 2's
        are not, and it has no ``attention_mask``), and would be no faster here.
        """


class chunk_gated_delta_rule(nn.Module):
    """Gated delta rule of prompts and training, with transformers' names."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        chunk_size: int = 64,
        initial_state: Optional[torch.Tensor] = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs,
    ):
        """See ``chunk_gated_delta_rule`` of this bundle.

        Args:
            query, key: ``(B, T, H, K)``; value: ``(B, T, HV, V)``; g, beta: ``(B, T, HV)``.
            chunk_size: the kernel chooses its own; no result depends on it but by rounding.
            initial_state: ``(N, HV, K, V)``, N samples: B, or as many as boundaries say.
            kwargs: ``cu_seqlens`` or ``cu_seq_lens_q`` ``(N + 1,)`` separates packed samples; without it ``seq_idx``
                ``(B, T)`` does. Anything else is ignored.

        Returns:
            ``(B, T, HV, V)`` and the states after the last tokens, or None.

        Raises:
            ValueError: the batch is packed and no boundaries arrived; or what ``chunk_gated_delta_rule`` refuses.
        """
        ends = _delta_ends(_chunk, query, kwargs)
        return _delta(
            _chunk, query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel, ends
        )


class fused_recurrent_gated_delta_rule(nn.Module):
    """Gated delta rule of decoding steps, with transformers' names."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        initial_state: Optional[torch.Tensor] = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs,
    ):
        """See ``fused_recurrent_gated_delta_rule`` of this bundle; otherwise as `chunk_gated_delta_rule`.

        In the forward of a wired model, and without autograd, a state out of the model's own cache is moved on in place
        and returned: the model copies what comes back over it.
        """
        return _delta_step(
            _recurrent, query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel, kwargs
        )


class recurrent_gated_delta_rule(fused_recurrent_gated_delta_rule):
    """The same, under the name transformers' default mapping asks a repository for."""


class chunk_kda(nn.Module):
    """Kimi delta attention of prompts and training, with transformers' names."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        chunk_size: int = 64,
        initial_state: Optional[torch.Tensor] = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs,
    ):
        """See ``chunk_kda`` of this bundle; ``g`` is ``(B, T, HV, K)``, otherwise as `chunk_gated_delta_rule`."""
        ends = _delta_ends(_chunk_kda, query, kwargs)
        return _delta(
            _chunk_kda, query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel, ends
        )


class chunk_kimi_delta_attention(chunk_kda):
    """The same, under the name transformers' default mapping asks a repository for."""


class fused_recurrent_kda(nn.Module):
    """Kimi delta attention of decoding steps, with transformers' names."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        initial_state: Optional[torch.Tensor],
        output_final_state: bool,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs,
    ):
        """See ``fused_recurrent_kda`` of this bundle; otherwise as `fused_recurrent_gated_delta_rule`."""
        return _delta_step(
            _recurrent_kda,
            query,
            key,
            value,
            g,
            beta,
            initial_state,
            output_final_state,
            use_qk_l2norm_in_kernel,
            kwargs,
        )


class recurrent_kimi_delta_attention(fused_recurrent_kda):
    """The same, under the name transformers' default mapping asks a repository for."""


class selective_scan_fn(nn.Module):
    """Selective scan (Mamba 1) of prompts and training, with transformers' names."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        D: Optional[torch.Tensor] = None,
        z: Optional[torch.Tensor] = None,
        delta_bias: Optional[torch.Tensor] = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        use_mambapy: bool = False,
        use_associative_scan: bool = False,
        **kwargs,
    ):
        """See ``selective_scan_fn`` of this bundle.

        Args:
            hidden_states, dt, z: ``(B, D, L)``; A: ``(D, N)``; B, C: ``(B, N, L)``; D, delta_bias: ``(D,)``.
            use_mambapy, use_associative_scan: ways of transformers' torch code; they change no result.
            kwargs: ``seq_idx`` ``(B, L)`` separates packed samples; without it ``cu_seq_lens_q`` ``(N + 1,)`` does.
                Anything else is ignored.

        Returns:
            ``(B, D, L)`` of the dtype of ``hidden_states``, or that and the states ``(B, D, N)`` after the last tokens.

        Raises:
            ValueError: the batch is packed and its boundaries are not those of these tokens; or what
                ``selective_scan_fn`` refuses.
        """
        size = hidden_states.shape[0], hidden_states.shape[2]
        seq_idx = boundaries.sequence_index(
            "selective_scan_fn", size, kwargs.get("seq_idx"), kwargs.get("cu_seq_lens_q")
        )
        return _selective_scan(
            hidden_states, dt, A, B, C, D, z, delta_bias, delta_softplus, return_last_state, seq_idx=seq_idx
        )


class mamba_inner_fn(nn.Module):
    """Convolution, projections and selective scan of a Mamba 1 mixer in training, with transformers' names."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        xz: torch.Tensor,
        conv1d_weight: torch.Tensor,
        conv1d_bias: Optional[torch.Tensor],
        x_proj_weight: torch.Tensor,
        delta_proj_weight: torch.Tensor,
        out_proj_weight: torch.Tensor,
        out_proj_bias: Optional[torch.Tensor],
        A: torch.Tensor,
        B: Optional[torch.Tensor] = None,
        C: Optional[torch.Tensor] = None,
        D: Optional[torch.Tensor] = None,
        delta_bias: Optional[torch.Tensor] = None,
        delta_softplus: bool = True,
        b_rms_weight: Optional[torch.Tensor] = None,
        c_rms_weight: Optional[torch.Tensor] = None,
        dt_rms_weight: Optional[torch.Tensor] = None,
        b_c_dt_rms_eps: float = 1e-6,
        **kwargs,
    ):
        """See ``mamba_inner_fn`` of this bundle; ``kwargs`` as in `selective_scan_fn`.

        None, which a mixer takes for "not fused", unless the batch is known to have no ``attention_mask``: it is not
        handed on to this function, and the convolution's output over padding has to be masked.

        Args:
            dt_rms_weight: that dt is to be normed, where transformers' torch code does it: before ``delta_proj``,
                without a weight. Falcon Mamba passes a dummy of the size that mamba_ssm wants, which norms after it.

        Raises:
            ValueError: the batch is packed and its boundaries are not those of these tokens; or what
                ``mamba_inner_fn`` refuses.
        """
        if not boundaries.without_mask():
            return None
        size = xz.shape[0], xz.shape[2]
        seq_idx = boundaries.sequence_index("mamba_inner_fn", size, kwargs.get("seq_idx"), kwargs.get("cu_seq_lens_q"))
        if dt_rms_weight is not None:
            dt_rms_weight = dt_rms_weight.new_ones(delta_proj_weight.shape[1])
        return _inner(
            xz,
            conv1d_weight,
            conv1d_bias,
            x_proj_weight,
            delta_proj_weight,
            out_proj_weight,
            out_proj_bias,
            A,
            B,
            C,
            D,
            delta_bias,
            delta_softplus=delta_softplus,
            b_rms_weight=b_rms_weight,
            c_rms_weight=c_rms_weight,
            dt_rms_weight=dt_rms_weight,
            b_c_dt_rms_eps=b_c_dt_rms_eps,
            seq_idx=seq_idx,
            norm_dt_rank=True,
        )


class selective_state_update(nn.Module):
    """One decoding step of Mamba 1 or Mamba 2; moves ``state`` on in place."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self,
        state: torch.Tensor,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        D: Optional[torch.Tensor] = None,
        dt_bias: Optional[torch.Tensor] = None,
        dt_softplus: bool = False,
        z: Optional[torch.Tensor] = None,
        **kwargs,
    ):
        """See ``selective_state_update`` of this bundle; nothing in ``kwargs`` has a meaning for one token.

        Args:
            state: ``(B, D, N)``, or with heads ``(B, H, P, N)``; changed in place, without gradient.
            hidden_states, dt, z: ``(B, D)`` or ``(B, H, P)``; A, B, C, D, dt_bias as there.

        Raises:
            ValueError: what ``selective_state_update`` refuses.
        """
        return _state_update(state, hidden_states, dt, A, B, C, D, z, dt_bias, dt_softplus)


def _delta_ends(kernel, query, kwargs) -> Optional[torch.Tensor]:
    given = kwargs.get("cu_seqlens")  # most models rename the collator's keyword, Kimi Linear passes it on
    given = kwargs.get("cu_seq_lens_q") if given is None else given
    return boundaries.sequence_ends(kernel.__name__, tuple(query.shape[:2]), given, kwargs.get("seq_idx"))


def _delta_step(kernel, query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel, kwargs):
    """`_delta` of the recurrent forms: what a decoding model asks for goes to the op at once, all else the long way."""
    ends = _delta_ends(kernel, query, kwargs)
    own_gate = g.dim() == (4 if kernel is _recurrent_kda else 3)  # the op takes either, and by that decides what it is
    plain = own_gate and ends is None and initial_state is not None and not torch.is_grad_enabled()
    if plain and not torch.compiler.is_compiling():
        inplace = output_final_state and boundaries.is_cached(initial_state)
        try:
            out, state = _step(query, key, value, g, beta, initial_state, use_qk_l2norm_in_kernel, inplace)
            return out, state if output_final_state else None
        except (RuntimeError, TypeError):
            pass  # it checks before it writes; the long way finds the words, or what the op takes instead
    return _delta(kernel, query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel, ends)


def _delta(kernel, query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel, ends):
    tensors = (query, key, value, g, beta)
    if ends is not None:  # several rows, one after the other
        tensors = tuple(tensor.flatten(0, 1)[None] for tensor in tensors)
    query, key, in_turn, g, beta = tensors
    out, state = kernel(
        query,
        key,
        in_turn,
        g=g,
        beta=beta,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        cu_seqlens=ends,
    )
    return out.view(value.shape), state
