(* The exponential function by two laws, which of all functions of the real numbers it alone obeys: it turns sums into
   products, and it is at least 1 + x. Coq's own reals have them as exp_plus and exp_ineq1_le. What is proved from
   these laws holds in every real field that has such a function, and needs no axiom of real numbers. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import combination.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Record exponential (R : realFieldType) := Exponential {
  exp_of :> R -> R;
  exp_add : forall x y, exp_of (x + y) = exp_of x * exp_of y;
  exp_ge : forall x, 1 + x <= exp_of x
}.

(* The logarithm is its inverse; where a number is not positive, it may be anything. *)
Record logarithm (R : realFieldType) (e : exponential R) := Logarithm {
  ln_of :> R -> R;
  exp_ln : forall x, 0 < x -> e (ln_of x) = x
}.

Section Exponential.
Variables (R : realFieldType) (e : exponential R).
Implicit Types x y h : R.

Lemma exp_half x : e x = e (x / 2%:R) ^+ 2.
Proof. by rewrite expr2 -exp_add; congr (e _); field. Qed.

Lemma exp_zero : e 0 = 1.
Proof.
have e0 : e 0 != 0 by rewrite gt_eqF // (lt_le_trans ltr01) // -[X in X <= _]addr0 exp_ge.
by apply: (mulfI e0); rewrite -exp_add addr0 mulr1.
Qed.

Lemma exp_gt0 x : 0 < e x.
Proof.
rewrite lt0r exp_half sqr_ge0 andbT -exp_half; apply/eqP => ex.
by have /eqP := exp_zero; rewrite -(subrr x) exp_add ex mul0r eq_sym oner_eq0.
Qed.

Lemma exp_neq0 x : e x != 0.
Proof. by rewrite gt_eqF ?exp_gt0. Qed.

Lemma exp_opp x : e (- x) = (e x)^-1.
Proof. by apply: (mulfI (exp_neq0 x)); rewrite -exp_add subrr exp_zero mulfV // exp_neq0. Qed.

Lemma exp_sub x y : e (x - y) = e x / e y.
Proof. by rewrite exp_add exp_opp. Qed.

Lemma exp_gt x : x != 0 -> 1 + x < e x.
Proof.
move=> x0; have half0 : 0 < (x / 2%:R) ^+ 2 by rewrite exprn_even_gt0 //= mulf_neq0 // invr_neq0 ?pnatr_eq0.
have [half_ge0 | half_lt0] := leP 0 (1 + x / 2%:R).
  rewrite exp_half; apply: (@lt_le_trans _ _ ((1 + x / 2%:R) ^+ 2)).
    by rewrite -subr_gt0 (_ : _ - _ = (x / 2%:R) ^+ 2) //; field.
  by rewrite ler_sqr ?nnegrE ?exp_ge // ltW // exp_gt0.
apply: le_lt_trans (exp_gt0 x); rewrite (_ : 1 + x = (1 + x / 2%:R) *+ 2 - 1); last by field.
by rewrite subr_le0; apply: le_trans ler01; rewrite pmulrn_lle0 // ltW.
Qed.

Lemma exp_lt : {mono e : x y / x < y}.
Proof.
have up x y : x < y -> e x < e y.
  move=> xy; rewrite -[y](subrK x) [y - x + x]addrC exp_add ltr_pmulr ?exp_gt0 //.
  by apply: lt_le_trans (exp_ge _ _); rewrite ltr_addl subr_gt0.
move=> x y; apply/idP/idP => [|/up //]; apply: contraTT; rewrite -!leNgt le_eqVlt.
by case/predU1P => [-> // | /up/ltW].
Qed.

Lemma exp_le : {mono e : x y / x <= y}.
Proof. by move=> x y; rewrite leNgt exp_lt -leNgt. Qed.

Lemma exp_inj : injective e.
Proof. by move=> x y same; apply: le_anti; rewrite -exp_le -[y <= x]exp_le same lexx. Qed.

Lemma exp_mulrn x n : e (x *+ n) = e x ^+ n.
Proof. by elim: n => [|n IH]; rewrite ?mulr0n ?exp_zero // mulrS exp_add IH exprS. Qed.

(* How far the exponential is from 1 + h near 0, from e h = e (h / 2) ^ 2: each time the share of h ^ 2 that is too
   much is halved. *)
Definition cubic (d h : R) := 1 + h + (2%:R^-1 + d) * h ^+ 2 + (9%:R / 46%:R + 4%:R * d) * h ^+ 3.

Lemma cubic_half (d h : R) : 0 <= d <= 2%:R^-1 -> 0 <= h <= 2%:R^-1 -> cubic d (h / 2%:R) ^+ 2 <= cubic (d / 2%:R) h.
Proof.
rewrite -![_ <= 2%:R^-1]subr_ge0 => /andP[d_ge0 d_le] /andP[h_ge0 h_le].
pose third := 9%:R / 46%:R + 4%:R * d : R; have third_ge0 : 0 <= third by rewrite /third; nonnegative.
pose less := ((2%:R^-1 + d) ^+ 2 / 16%:R + third / 8%:R) + (2%:R^-1 + d) * third / 16%:R * (2%:R^-1 + h) +
  third ^+ 2 / 64%:R * (4%:R^-1 + h / 2%:R + h ^+ 2).
rewrite -subr_ge0 (_ : _ - _ = h ^+ 3 * ((2%:R^-1 - h) * less + 103%:R / (512%:R * 46%:R ^+ 2) +
  d * (543%:R / 1472%:R + (2%:R^-1 - d) / 8%:R))); last first.
  by rewrite /cubic /less /third; field.
by rewrite /less; nonnegative.
Qed.

Lemma exp_cubic n h : 0 <= h <= 2%:R^-1 -> e h <= cubic (2%:R^-1 ^+ n.+1) h.
Proof.
elim: n h => [|n IH] h /andP[h_ge0 h_le].
  have less1 : 0 < 1 - h by rewrite subr_gt0 (le_lt_trans h_le) // invf_lt1 ?ltr1n ?ltr0n.
  apply: (@le_trans _ _ (1 - h)^-1).
    by rewrite -[e h]invrK -exp_opp lef_pinv ?posrE ?exp_gt0 ?exp_ge.
  rewrite -[X in X <= _]mul1r ler_pdivr_mulr // -subr_ge0.
  rewrite (_ : _ - _ = h ^+ 3 * ((2%:R^-1 - h) * 2%:R + 9%:R / 46%:R * (1 - h))).
    by rewrite -subr_ge0 in h_le; have := ltW less1 => ?; nonnegative.
  by rewrite /cubic expr1; field.
have half_ge0 : 0 <= 2%:R^-1 :> R by rewrite invr_ge0 ler0n.
have quarter : 0 <= h / 2%:R <= 2%:R^-1.
  by rewrite divr_ge0 ?ler0n //=; apply: le_trans h_le; rewrite ler_pdivr_mulr ?ltr0n // ler_pemulr // ler1n.
rewrite exp_half (exprSr _ n.+1); set d := 2%:R^-1 ^+ n.+1 in IH *.
have d_by : 0 <= d <= 2%:R^-1.
  by rewrite exprn_ge0 //= /d exprS ler_pimulr // exprn_ile1 // invf_le1 ?ltr0n // ler1n.
apply: (@le_trans _ _ (cubic d (h / 2%:R) ^+ 2)); last by apply: cubic_half; rewrite ?h_ge0.
have := IH _ quarter; have := exp_gt0 (h / 2%:R) => ex_gt0 at_most.
by rewrite ler_sqr ?nnegrE // ltW // (lt_le_trans ex_gt0).
Qed.

(* With all logarithms of positive numbers. *)
Lemma exp_above h : 0 <= h <= 2%:R^-1 -> e h <= 1 + h + 299%:R / 500%:R * h ^+ 2.
Proof.
move=> h_by; apply: le_trans (exp_cubic 14 h_by) _; move: h_by.
rewrite -[_ <= 2%:R^-1]subr_ge0 => /andP[h_ge0 h_le]; pose d := 32%:R^-1 ^+ 3 : R.
rewrite (_ : 2%:R^-1 ^+ 15 = d) /cubic; last by rewrite /d; field.
rewrite -subr_ge0 (_ : _ - _ = h ^+ 2 * ((2%:R^-1 - h) * (9%:R / 46%:R + 4%:R * d) +
  (70%:R * 110%:R + 59%:R) / (23%:R * 125%:R) * d)); last by rewrite /d; field.
by rewrite /d; nonnegative.
Qed.

(* And how far it is below: its square grows from 1 + h / 2. *)
Lemma exp_below h : 0 <= h -> 1 + h + 7%:R / 16%:R * h ^+ 2 <= e h.
Proof.
have step (b c : R) : 0 <= b -> c = 4%:R^-1 + b / 2%:R -> (forall g, 0 <= g -> 1 + g + b * g ^+ 2 <= e g) ->
    forall g, 0 <= g -> 1 + g + c * g ^+ 2 <= e g.
  move=> b_ge0 -> IH g g_ge0; have g2 : 0 <= g / 2%:R by nonnegative.
  have b2 : 0 <= 1 + g / 2%:R + b * (g / 2%:R) ^+ 2 by nonnegative.
  rewrite exp_half; apply: (@le_trans _ _ ((1 + g / 2%:R + b * (g / 2%:R) ^+ 2) ^+ 2)).
    by rewrite -subr_ge0 (_ : _ - _ = b * g ^+ 3 / 4%:R + b ^+ 2 * (g ^+ 4 / 16%:R)); [nonnegative | field].
  by rewrite ler_sqr ?nnegrE ?IH // ltW // exp_gt0.
apply: (step (3%:R / 8%:R)); [by nonnegative | by field |].
apply: (step 4%:R^-1); [by nonnegative | by field |].
apply: (step 0); [by [] | by field |] => g _; rewrite mul0r addr0; exact: exp_ge.
Qed.

Section Logarithm.
Variable ln : logarithm e.

Lemma ln_exp x : ln (e x) = x.
Proof. by apply: exp_inj; rewrite exp_ln ?exp_gt0. Qed.

Lemma ln_mul x y : 0 < x -> 0 < y -> ln (x * y) = ln x + ln y.
Proof. by move=> x0 y0; apply: exp_inj; rewrite exp_add !exp_ln ?mulr_gt0. Qed.

Lemma ln_inv x : 0 < x -> ln x^-1 = - ln x.
Proof. by move=> x0; apply: exp_inj; rewrite exp_opp !exp_ln ?invr_gt0. Qed.

Lemma ln_div x y : 0 < x -> 0 < y -> ln (x / y) = ln x - ln y.
Proof. by move=> x0 y0; rewrite ln_mul ?invr_gt0 // ln_inv. Qed.

Lemma ln_le x y : 0 < x -> 0 < y -> (ln x <= ln y) = (x <= y).
Proof. by move=> x0 y0; rewrite -exp_le !exp_ln. Qed.
End Logarithm.
End Exponential.
