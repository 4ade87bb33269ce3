(* Hoeffding's bound on an exponential moment, in every Archimedean field with an exponential: a number of mean 0
   within an interval of length r has E e^x <= e^(r^2/8). *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import combination exponential.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Section Steps.
Variables (R : realFieldType) (e : exponential R) (q step : R).
Hypotheses (q_ge0 : 0 <= q) (q_le1 : q <= 1) (step_ge0 : 0 <= step).

Let moment k := 1 - q + q * e (step *+ k).
Let tilted k := q * e (step *+ k) / moment k.
Let growth := e step - 1.

Let growth_ge0 : 0 <= growth.
Proof. by rewrite subr_ge0 -(exp_zero e) exp_le. Qed.

Let moment_gt0 k : 0 < moment k.
Proof.
rewrite /moment; have [-> | q1] := eqVneq q 1; first by rewrite subrr add0r mul1r exp_gt0.
by rewrite ltr_spaddl ?mulr_ge0 ?(ltW (exp_gt0 _ _)) // subr_gt0 lt_neqAle q1.
Qed.

Let tilted_ge0 k : 0 <= tilted k.
Proof. by rewrite divr_ge0 ?mulr_ge0 ?(ltW (exp_gt0 _ _)) // ltW. Qed.

Let tilted_step k : tilted k.+1 <= tilted k + growth / 4%:R.
Proof.
have m0 := moment_gt0 k; have t_ge0 := tilted_ge0 k; have g_ge0 := growth_ge0.
have more_gt0 : 0 < 1 + tilted k * growth by apply: ltr_spaddl; [exact: ltr01 | exact: mulr_ge0].
have next : moment k.+1 = moment k * (1 + tilted k * growth).
  by rewrite /tilted /growth mulrDr mulr1 mulrA [moment k * _]mulrC divfK ?gt_eqF // /moment mulrS exp_add; ring.
have -> : tilted k.+1 = tilted k * (1 + growth) / (1 + tilted k * growth).
  rewrite {1}/tilted next mulrS exp_add (_ : q * _ = tilted k * moment k * (1 + growth)); last first.
    by rewrite [tilted k * _]divfK ?gt_eqF // /growth; ring.
  by field; rewrite !gt_eqF.
rewrite ler_pdivr_mulr // -subr_ge0.
rewrite [X in _ <= X](_ : _ = growth * ((1 - 2%:R * tilted k) ^+ 2 + growth * tilted k) / 4%:R).
  rewrite divr_ge0 ?ler0n //; apply: mulr_ge0 => //; apply: addr_ge0; [exact: sqr_ge0 | exact: mulr_ge0].
by field.
Qed.

Let tilted_le k : tilted k <= q + growth *+ k / 4%:R.
Proof.
elim: k => [|k IH]; first by rewrite /tilted /moment mulr0n exp_zero mulr1 subrK divr1 mul0r addr0.
apply: le_trans (tilted_step k) _; rewrite (mulrSr growth) (mulrDl (growth *+ k)) addrA ler_add2r; exact: IH.
Qed.

Lemma moment_le k : moment k <= e (q * (growth *+ k) + (growth *+ k) ^+ 2 / 8%:R).
Proof.
elim: k => [|k IH].
  by rewrite /moment mulr0n exp_zero mulr1 subrK mulr0 expr0n mul0r addr0 exp_zero.
have -> : moment k.+1 = moment k * (1 + tilted k * growth).
  rewrite /tilted mulrDr mulr1 mulrA [moment k * _]mulrC divfK ?gt_eqF // /moment mulrS exp_add /growth; ring.
apply: (@le_trans _ _ (e (q * (growth *+ k) + (growth *+ k) ^+ 2 / 8%:R) * e (tilted k * growth))).
  by apply: ler_pmul; rewrite ?exp_ge ?(ltW (moment_gt0 k)) // addr_ge0 ?ler01 // mulr_ge0.
rewrite -exp_add exp_le (mulrSr growth); set total := growth *+ k.
have total_ge0 : 0 <= total by exact: mulrn_wge0.
have less : 0 <= (q + total / 4%:R) * growth - tilted k * growth.
  by rewrite subr_ge0; apply: ler_wpmul2r (tilted_le k).
rewrite -subr_ge0 [X in _ <= X](_ : _ = ((q + total / 4%:R) * growth - tilted k * growth) + growth ^+ 2 / 8%:R).
  by apply: addr_ge0 => //; rewrite divr_ge0 ?sqr_ge0 ?ler0n.
by field.
Qed.
End Steps.

(* What holds up to a factor e^(c/n) for every large n holds. *)
Lemma le_of_exp (R : archiFieldType) (e : exponential R) (x y c least : R) :
  0 < y -> 0 <= c -> (forall n, least <= n%:R -> x <= y * e (c / n%:R)) -> x <= y.
Proof.
move=> y_gt0 c_ge0 near; rewrite leNgt; apply/negP => y_x.
pose gap := x / y - 1; have gap_gt0 : 0 < gap by rewrite subr_gt0 ltr_pdivl_mulr ?mul1r.
have share_ge0 : 0 <= 2%:R * c / gap by rewrite divr_ge0 ?mulr_ge0 ?ler0n // ltW.
have double_ge0 : 0 <= 2%:R * c by rewrite mulr_ge0 ?ler0n.
have least_ge0 := normr_ge0 least.
have factor_ge0 : 0 <= `|least| + 2%:R * c + 2%:R * c / gap + 1 by nonnegative.
pose n := Num.bound (`|least| + 2%:R * c + 2%:R * c / gap + 1).
have := archi_boundP factor_ge0; rewrite -/n => n_gt.
have n_gt0 : 0 < n%:R :> R by apply: le_lt_trans n_gt.
have n_least : least <= n%:R.
  by apply/ltW/(le_lt_trans _ n_gt); rewrite -!addrA (le_trans (ler_norm _)) // ler_addl !addr_ge0 ?ler01.
have small : c / n%:R <= 2%:R^-1.
  rewrite ler_pdivr_mulr // mulrC ler_pdivl_mulr ?ltr0n // mulrC; apply/ltW/(le_lt_trans _ n_gt).
  by rewrite -!addrA addrCA ler_addl !addr_ge0 ?normr_ge0 ?ler01.
have cn_ge0 : 0 <= c / n%:R by rewrite divr_ge0 // ltW.
have above : e (c / n%:R) <= 1 + 2%:R * (c / n%:R).
  have half : 0 <= 2%:R^-1 - c / n%:R by rewrite subr_ge0.
  apply: (le_trans (exp_above e _)); first by rewrite cn_ge0.
  move: (c / _) cn_ge0 half => d d_ge0 half; rewrite -subr_ge0.
  rewrite [X in _ <= X](_ : _ = d * (2%:R^-1 - d) * (299%:R / 500%:R) + 701%:R / 1000%:R * d); last by field.
  by nonnegative.
have := near n n_least; rewrite leNgt; apply/negP; rewrite negbK.
rewrite [y * _]mulrC -ltr_pdivl_mulr //; apply: (le_lt_trans above).
rewrite addrC -ltr_subr_addr -/gap mulrA ltr_pdivr_mulr // [gap * _]mulrC -ltr_pdivr_mulr //.
by apply: le_lt_trans n_gt; rewrite [_ + 2%:R * c / gap]addrC -addrA ler_addl !addr_ge0 ?normr_ge0 ?ler01.
Qed.

Section Hoeffding.
Variables (R : archiFieldType) (e : exponential R).

Lemma two_points (q r : R) : 0 <= q -> q <= 1 -> 0 <= r -> 1 - q + q * e r <= e (q * r + r ^+ 2 / 8%:R).
Proof.
move=> q_ge0 q_le1 r_ge0.
apply: (@le_of_exp _ e _ _ (r ^+ 2 * (q + r)) (1 + 2%:R * r)); rewrite ?exp_gt0 //.
  by rewrite mulr_ge0 ?sqr_ge0 ?addr_ge0.
move=> n n_ge; have n_gt0 : 0 < n%:R :> R.
  by apply: lt_le_trans n_ge; rewrite ltr_spaddl ?ltr01 // mulr_ge0 ?ler0n.
pose step := r / n%:R; have step_ge0 : 0 <= step by rewrite divr_ge0 // ltW.
have step_n : step *+ n = r by rewrite -mulr_natr divfK ?gt_eqF.
have r_n : 2%:R * r <= n%:R by apply: le_trans n_ge; rewrite ler_addr ler01.
have step_le : step <= 2%:R^-1 by rewrite ler_pdivr_mulr // mulrC ler_pdivl_mulr ?ltr0n // mulrC.
have := moment_le e q_ge0 q_le1 step_ge0 n; rewrite step_n => /le_trans; apply.
rewrite -exp_add exp_le; set total := _ *+ n.
have total_le : total <= r + r * step.
  rewrite (_ : r + _ = (step + step ^+ 2) *+ n); last by rewrite -mulr_natr /step; field; rewrite gt_eqF.
  apply: ler_wmuln2r; rewrite ler_subl_addl; apply: (le_trans (exp_above e _)); first by rewrite step_ge0.
  by rewrite -addrA !ler_add2l ler_pimull ?sqr_ge0 // ler_pdivr_mulr ?ltr0n // mul1r ler_nat.
have total_ge0 : 0 <= total by rewrite mulrn_wge0 // subr_ge0 -(exp_zero e) exp_le.
apply: (@le_trans _ _ (q * (r + r * step) + (r + r * step) ^+ 2 / 8%:R)).
  rewrite ler_add ?ler_wpmul2l // ler_wpmul2r ?invr_ge0 ?ler0n // ler_sqr ?nnegrE //.
  exact: le_trans total_le.
rewrite -subr_ge0 [X in _ <= X](_ : _ = r ^+ 2 * step * ((2%:R^-1 - step) + 11%:R / 2%:R) / 8%:R); last first.
  by rewrite /step; field; rewrite gt_eqF.
by have half : 0 <= 2%:R^-1 - step; [rewrite subr_ge0 | nonnegative].
Qed.
Lemma hoeffding (I : eqType) (s : seq I) (share x : I -> R) (lo hi : R) :
  (forall i, i \in s -> 0 <= share i) -> \sum_(i <- s) share i = 1 -> \sum_(i <- s) share i * x i = 0 ->
  (forall i, i \in s -> lo <= x i <= hi) -> \sum_(i <- s) share i * e (x i) <= e ((hi - lo) ^+ 2 / 8%:R).
Proof.
move=> share_ge0 sum1 mean0 within; pose r := hi - lo.
have at_most (f g : I -> R) : (forall i, i \in s -> f i <= g i) ->
    \sum_(i <- s) share i * f i <= \sum_(i <- s) share i * g i.
  by move=> le_fg; rewrite big_seq [X in _ <= X]big_seq; apply: ler_sum => i i_s; rewrite ler_wpmul2l ?share_ge0 ?le_fg.
have const c : \sum_(i <- s) share i * c = c by rewrite -mulr_suml sum1 mul1r.
have lo_le0 : lo <= 0 by have := at_most (fun=> lo) x; rewrite const mean0; apply=> i /within/andP[].
have hi_ge0 : 0 <= hi by have := at_most x (fun=> hi); rewrite const mean0; apply=> i /within/andP[].
have r_ge0 : 0 <= r by rewrite subr_ge0 (le_trans lo_le0).
have [r0 | r_neq0] := eqVneq r 0.
  have zero i : i \in s -> x i = 0.
    move=> /within/andP[lo_x x_hi]; have hi_lo : hi = lo by apply/eqP; rewrite -subr_eq0 -/r r0.
    by apply: le_anti; rewrite (le_trans x_hi) ?hi_lo // (le_trans _ lo_x) // -hi_lo.
  rewrite -/r r0 expr0n mul0r exp_zero; have := at_most (fun i => e (x i)) (fun=> 1); rewrite const; apply.
  by move=> i /zero ->; rewrite exp_zero.
have r_gt0 : 0 < r by rewrite lt0r r_neq0.
pose chord y := ((hi - y) * e lo + (y - lo) * e hi) / r.
have convex y : lo <= y <= hi -> e y <= chord y.
  move=> /andP[lo_y y_hi]; rewrite ler_pdivl_mulr //.
  have step z : e y * (1 + (z - y)) <= e z.
    by rewrite -[X in _ <= e X](subrK y z) [z - y + y]addrC exp_add ler_wpmul2l ?exp_ge // ltW ?exp_gt0.
  rewrite (_ : e y * r = (hi - y) * (e y * (1 + (lo - y))) + (y - lo) * (e y * (1 + (hi - y)))); last first.
    by rewrite /r; ring.
  by apply: ler_add; apply: ler_wpmul2l; rewrite ?subr_ge0 ?step.
apply: (le_trans (at_most (fun i => e (x i)) (fun i => chord (x i)) (fun i i_s => convex _ (within i i_s)))).
pose q := - lo / r.
have -> : \sum_(i <- s) share i * chord (x i) = e lo * (1 - q + q * e r).
  transitivity (\sum_(i <- s) (share i * ((hi * e lo - lo * e hi) / r) + share i * x i * ((e hi - e lo) / r))).
    by apply: eq_bigr => i _; rewrite /chord; field; exact: r_neq0.
  rewrite big_split /= const -mulr_suml mean0 mul0r addr0 (_ : e hi = e lo * e r).
    by rewrite /q; move: (e lo) (e r) => a b; rewrite /r; field; exact: r_neq0.
  by rewrite -exp_add /r addrC subrK.
have q_ge0 : 0 <= q by rewrite divr_ge0 // oppr_ge0.
have q_le1 : q <= 1 by rewrite ler_pdivr_mulr // mul1r /r -subr_ge0 opprK subrK.
apply: (@le_trans _ _ (e lo * e (q * r + r ^+ 2 / 8%:R))).
  by rewrite ler_wpmul2l ?two_points // ltW ?exp_gt0.
by rewrite -exp_add divfK // addrA subrr add0r.
Qed.
End Hoeffding.

(* There is no other exponential: any two agree in an Archimedean field. *)
Lemma exp_unique (R : archiFieldType) (e f : exponential R) x : e x = f x.
Proof.
have at_most (a b : exponential R) : a x <= b x.
  apply: (@le_of_exp _ b _ _ (2%:R * x ^+ 2) (1 + 2%:R * x ^+ 2)); first exact: exp_gt0; first by nonnegative.
  move=> n n_ge; have n_gt0 : 0 < n%:R :> R by apply: lt_le_trans n_ge; rewrite ltr_spaddl ?ltr01 //; nonnegative.
  have n_ge1 : 1 <= n%:R :> R by apply: le_trans n_ge; rewrite ler_addl; nonnegative.
  pose y := x / n%:R; have x_by : x = y *+ n by rewrite -mulr_natr divfK ?gt_eqF.
  have y_small : 0 <= 2%:R^-1 - y ^+ 2.
    rewrite subr_ge0 expr_div_n ler_pdivr_mulr ?exprn_gt0 // mulrC ler_pdivl_mulr ?ltr0n // mulrC.
    apply: (@le_trans _ _ n%:R); first by apply: le_trans n_ge; rewrite ler_addr ler01.
    by rewrite expr2 ler_pemull // ltW.
  have half_gt0 : 0 < 2%:R^-1 :> R by rewrite invr_gt0 ltr0n.
  have below_gt0 : 0 < 1 - y ^+ 2.
    by rewrite (_ : 1 - _ = 2%:R^-1 - y ^+ 2 + 2%:R^-1); [rewrite ltr_paddl | field].
  have ratio : a y / b y <= b (2%:R * y ^+ 2).
    have up : a y * (1 - y) <= 1.
      have := ler_wpmul2l (ltW (exp_gt0 a y)) (exp_ge a (- y)); rewrite -exp_add subrr exp_zero; exact.
    have down : (1 + y) / b y <= 1 by rewrite ler_pdivr_mulr ?exp_gt0 // mul1r exp_ge.
    have : `|y| < 1.
      by rewrite -ltr_sqr ?nnegrE ?normr_ge0 ?ler01 // real_normK ?num_real // expr1n -subr_gt0.
    rewrite ltr_norml -[-1 < y]subr_gt0 opprK addrC -[y < 1]subr_gt0 => /andP[/ltW high /ltW low].
    have [a_ge0 b_ge0] := (ltW (exp_gt0 a y), ltW (exp_gt0 b y)).
    apply: (@le_trans _ _ (1 / (1 - y ^+ 2))).
      rewrite ler_pdivl_mulr // [X in X <= _](_ : _ = a y * (1 - y) * ((1 + y) / b y)); last by field; exact: exp_neq0.
      by rewrite -[X in _ <= X]mulr1; apply: ler_pmul => //; [exact: mulr_ge0 | exact: divr_ge0].
    apply: le_trans (exp_ge b _); rewrite ler_pdivr_mulr // -subr_ge0.
    rewrite [X in _ <= X](_ : _ = 2%:R * y ^+ 2 * (2%:R^-1 - y ^+ 2)); [nonnegative | by field].
  have -> : 2%:R * x ^+ 2 / n%:R = (2%:R * y ^+ 2) *+ n by rewrite -mulr_natr /y; field; rewrite gt_eqF.
  rewrite {1 2}x_by.
  rewrite !exp_mulrn -exprMn ler_expn2r ?nnegrE ?mulr_ge0 ?(ltW (exp_gt0 _ _)) // mulrC -ler_pdivr_mulr ?exp_gt0 //.
by apply: le_anti; rewrite !at_most.
Qed.
