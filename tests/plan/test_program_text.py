"""What is read from the text of a compiled program, on small ones."""

import pytest

from mpt_cli.plan.program_text import ArrayGroup, Exchange, Products, StepReader, parse_program

# The lines are as XLA prints them.
STEP = """HloModule train, is_scheduled=true

%product (p: f16[64,256], q: f32[256,512]) -> f16[64,512] {
  %p = f16[64,256]{1,0} parameter(0)
  %q = f32[256,512]{1,0} parameter(1)
  %narrow = f16[256,512]{1,0} convert(%q), metadata={op_name="jit(f)/while/body/jvp(dense)/convert_element_type"}
  ROOT %dot = f16[64,512]{1,0} dot(%p, %narrow), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/while/body/jvp(dense)/dot_general"}
}

%log (l: f32[8,4], r: f32[4], n: s32[]) -> f32[8,4] {
  %l = f32[8,4]{1,0} parameter(0)
  %r = f32[4]{0} parameter(1)
  %n = s32[] parameter(2)
  %row = f32[1,4]{1,0} bitcast(%r)
  %zero = s32[] constant(0)
  ROOT %put = f32[8,4]{1,0} dynamic-update-slice(%l, %row, %n, %zero)
}

%skipped (s: (f16[64,512])) -> (f16[64,512]) {
  %s = (f16[64,512]) parameter(0)
  %s0 = f16[64,512]{1,0} get-tuple-element(%s), index=0
  %same = f16[64,512]{1,0} copy(%s0)
  ROOT %kept = (f16[64,512]) tuple(%same)
}

%applied (a: (f16[64,512])) -> (f16[64,512]) {
  %a = (f16[64,512]) parameter(0)
  %a0 = f16[64,512]{1,0} get-tuple-element(%a), index=0
  %half = f16[64,512]{1,0} add(%a0, %a0)
  %square = f16[64,512]{1,0} multiply(%half, %half)
  ROOT %new = (f16[64,512]) tuple(%square)
}

%go (g: (s32[], f16[64,256], f32[256,512], f32[8,4])) -> pred[] {
  %g = (s32[], f16[64,256], f32[256,512], f32[8,4]) parameter(0)
  %g0 = s32[] get-tuple-element(%g), index=0
  %limit = s32[] constant(8)
  ROOT %less = pred[] compare(%g0, %limit), direction=LT
}

%body (b: (s32[], f16[64,256], f32[256,512], f32[8,4])) -> (s32[], f16[64,256], f32[256,512], f32[8,4]) {
  %b = (s32[], f16[64,256], f32[256,512], f32[8,4]) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %x = f16[64,256]{1,0} get-tuple-element(%b), index=1
  %w = f32[256,512]{1,0} get-tuple-element(%b), index=2
  %records = f32[8,4]{1,0} get-tuple-element(%b), index=3
  %y = f16[64,512]{1,0} fusion(%x, %w), kind=kCustom, calls=%product, metadata={op_name="jit(f)/while/body/jvp(dense)/dot_general"}
  %summed = f16[64,512]{1,0} all-reduce(%y), replica_groups={{0,1}}, to_apply=%less, metadata={op_name="jit(f)/while/body/transpose(jvp(dense))/dot_general"}
  %given = (f16[64,512]) tuple(%summed)
  %yes = pred[] constant(true)
  %update = (f16[64,512]) conditional(%yes, %given, %given), true_computation=%applied, false_computation=%skipped
  %four = f32[4]{0} constant({1, 2, 3, 4})
  %noted = f32[8,4]{1,0} fusion(%records, %four, %i), kind=kLoop, calls=%log
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %out = (s32[], f16[64,256], f32[256,512], f32[8,4]) tuple(%next, %x, %w, %noted)
}

ENTRY %main (e: (s32[], f16[64,256], f32[256,512], f32[8,4])) -> (s32[], f16[64,256], f32[256,512], f32[8,4]) {
  %e = (s32[], f16[64,256], f32[256,512], f32[8,4]) parameter(0)
  ROOT %loop = (s32[], f16[64,256], f32[256,512], f32[8,4]) while(%e), condition=%go, body=%body
}
"""
LINE = "  %y = f16[64,512]{1,0} fusion(%x, %w), kind=kCustom, calls=%product"


def step_with(*lines: str, has_tf32: bool = True):
    """The step of `STEP` with more instructions before its product."""
    return StepReader(STEP.replace(LINE, "\n".join([*lines, LINE]), 1), has_tf32)


def test_products_and_what_goes_between_devices():
    step = step_with()
    assert step.products() == [Products("dense", "float16", 1)]
    assert step.exchanges() == [Exchange("all-reduce", "float16", 64 * 512)]


def test_the_largest_arrays_are_those_made_and_not_those_carried_on():
    found = step_with(
        '  %big = f32[8,100000]{1,0} exponential(%records), metadata={op_name="jit(f)/while/body/head/exp"}'
    )
    assert found.largest_arrays(2) == [
        ArrayGroup(3_200_000, "float32 [8, 100000]", "head"),
        ArrayGroup(2 * 64 * 512 * 2, "2 x float16 [64, 512]", "dense"),
    ]
    assert not any(each.form == "float32 [8, 4]" for each in found.largest_arrays(99))


CUBLAS = (
    'custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
    '{"lhs_contracting_dimensions":["1"],"lhs_batch_dimensions":[]},"precision_config":{"operand_precision":'
    '["PRECISION","PRECISION"]}}}'
)


@pytest.mark.parametrize(
    ("precision", "has_tf32", "dtype"),
    [
        ("DEFAULT", True, "tf32"),
        ("HIGHEST", True, "float32"),
        ("DEFAULT", False, "float32"),
    ],
)
def test_float32_is_tf32_unless_more_was_asked_for(precision, has_tf32, dtype):
    wide = "  %v = f32[64,256]{1,0} convert(%x)"
    call = "  %p = (f32[64,512]{1,0}, s8[99]{0}) custom-call(%v, %w), " + CUBLAS.replace("PRECISION", precision)
    found = step_with(wide, call, has_tf32=has_tf32).products()
    assert {each.dtype for each in found} == {dtype, "float16"}


def test_convolutions_attentions_and_inner_loops_are_read():
    image = "  %a = bf16[2,128,4,64]{3,2,1,0} get-tuple-element(%b), index=1"
    calls = [
        f'  %c{place} = (bf16[2,128,4,64]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%a, %a), custom_call_target="{target}", '
        f'metadata={{op_name="jit(f)/while/body/layer_{place}/dot_general"}}'
        for place, target in enumerate(["__cudnn$convForward", "__cudnn$fmhaSoftmaxBackward", "other"])
    ]
    loop = "  %again = (f16[64,512]) while(%given), condition=%go, body=%inner\n  %four ="
    product = '  %wide = f32[64,64]{1,0} dot(%a0, %a0), metadata={op_name="jit(f)/while/body/scan/dot_general"}\n'
    body = STEP[STEP.index("%applied (a") : STEP.index("%go (g")].replace("%applied", "%inner").replace("f16[", "f32[")
    text = STEP.replace("%go (g", body.replace("  %half", f"{product}  %half") + "%go (g", 1)
    text = text.replace("  %four =", loop, 1).replace(LINE, "\n".join([image, *calls, LINE]), 1)
    assert StepReader(text, False).products() == [
        Products("layer_0", "bfloat16", 1),
        Products("layer_1", "bfloat16", 1),
        Products("dense", "float16", 1),
        Products("scan", "float32", 1),
    ]


def test_a_text_without_a_program_or_without_a_loop_is_refused():
    with pytest.raises(ValueError, match=r"must have an ENTRY computation. Received: 'nothing'"):
        parse_program("nothing")
    with pytest.raises(ValueError, match=r"must have a loop over steps. Received: one without"):
        StepReader("ENTRY %main (x: f32[]) -> f32[] {\n  ROOT %x = f32[] parameter(0)\n}", True)
