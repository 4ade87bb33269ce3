(* What changing one entry's logit and value does to the output (proofs/obcache.md): one formula, and the two numbers
   in it where the logit is made smaller. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import seminorm combination exponential critical_kv.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

(* One formula for every change of one entry: its exponential is multiplied by s, and its value becomes another. *)
Lemma replacement (R : realFieldType) (E : lmodType R) (I : finType) (f f' : I -> R) (V V' : I -> E) (p : I) (s : R) :
  (forall i, 0 < f i) -> 0 < s -> f' p = f p * s -> (forall i, i != p -> f' i = f i /\ V' i = V i) ->
  let weight (g : I -> R) i := g i / \sum_j g j in
  let A := weight f p in let o := output (weight f) V in
  output (weight f') V' - o = (A / (1 - A + A * s)) *: (s *: (V' p - o) - (V p - o)).
Proof.
move=> f_gt0 s_gt0 at_p others weight A o.
have rest_ge0 : 0 <= \sum_(i | i != p) f i by apply: sumr_ge0 => i _; exact: ltW.
have D_by : \sum_i f i = f p + \sum_(i | i != p) f i by rewrite (bigD1 p).
have D'_by : \sum_i f' i = f p * s + \sum_(i | i != p) f i.
  by rewrite (bigD1 p) //= at_p; congr (_ + _); apply: eq_bigr => i /others[].
have D_gt0 : 0 < \sum_i f i by rewrite D_by ltr_paddr.
have D'_gt0 : 0 < \sum_i f' i by rewrite D'_by ltr_paddr ?mulr_gt0.
have by_sum (g : I -> R) (U : I -> E) : 0 < \sum_i g i ->
    (\sum_i g i) *: output (weight g) U = \sum_i g i *: U i.
  move=> total_gt0; rewrite /output scaler_sumr; apply: eq_bigr => i _.
  by rewrite scalerA /weight mulrC divfK // gt_eqF.
have factor : A / (1 - A + A * s) = f p / \sum_i f' i.
  have [D0 D'0] := (lt0r_neq0 D_gt0, lt0r_neq0 D'_gt0); rewrite /A /weight D'_by D_by in D0 D'0 *.
  rewrite (_ : 1 - _ + _ = (f p * s + \sum_(i | i != p) f i) / (f p + \sum_(i | i != p) f i)); last by field.
  by field; rewrite D0 D'0.
apply: (scalerI (lt0r_neq0 D'_gt0)); rewrite factor scalerA [_ * (f p / _)]mulrC divfK ?gt_eqF //.
rewrite scalerBr by_sum // (bigD1 p) //= at_p.
under eq_bigr => i i_p do rewrite (proj1 (others i i_p)) (proj2 (others i i_p)).
have -> : \sum_(i | i != p) f i *: V i = (\sum_i f i) *: o - f p *: V p.
  by rewrite by_sum // [\sum_i f i *: V i](bigD1 p) //= [RHS]addrC addKr.
by rewrite D'_by D_by; linear; ring.
Qed.

Section Exponential.
Variables (R : realFieldType) (e : exponential R).

(* The two numbers in it, where the logit becomes smaller by x: for every weight a, and for small x. *)
Section Factors.
Variables (a x : R).
Hypotheses (a_ge0 : 0 <= a) (a_le1 : a <= 1).
Definition grown := 1 - a + a * e (- x).
Definition lost := (1 - e (- x)) / grown.
Definition left := e (- x) / grown.
Notation h := `|x|.

Lemma factors :
  [/\ 0 < grown, 1 - e (- h) <= `|lost| <= e h - 1, `|lost - x| = `| `|lost| - h| & e (- h) <= left <= e h].
Proof.
have s_gt0 := exp_gt0 e (- x); have rest_ge0 : 0 <= 1 - a by rewrite subr_ge0.
have grown_gt0 : 0 < grown.
  rewrite /grown; have [-> | a_lt1] := eqVneq a 1; first by rewrite subrr add0r mul1r.
  by rewrite ltr_spaddl ?mulr_ge0 ?(ltW s_gt0) // subr_gt0 lt_neqAle a_lt1.
have [x_ge0 | /ltW x_le0] := leP 0 x.
  have s_le1 : e (- x) <= 1 by rewrite -(exp_zero e) exp_le oppr_le0.
  have grown_le1 : grown <= 1.
    by rewrite -subr_ge0 (_ : _ - _ = a * (1 - e (- x))) ?mulr_ge0 ?subr_ge0 // /grown; ring.
  have grown_ge : e (- x) <= grown.
    by rewrite -subr_ge0 (_ : _ - _ = (1 - a) * (1 - e (- x))) ?mulr_ge0 ?subr_ge0 // /grown; ring.
  have lost_ge0 : 0 <= lost by rewrite divr_ge0 ?subr_ge0 // ltW.
  rewrite (ger0_norm x_ge0) (ger0_norm lost_ge0); split=> //; apply/andP; split.
  - by rewrite ler_pdivl_mulr // ler_pimulr // subr_ge0.
  - rewrite ler_pdivr_mulr // -[e x]invrK -exp_opp.
    rewrite (_ : 1 - e (- x) = ((e (- x))^-1 - 1) * e (- x)); last by field; exact: exp_neq0.
    by apply: ler_wpmul2l grown_ge; rewrite subr_ge0 invf_ge1.
  - by rewrite ler_pdivl_mulr // ler_pimulr // ltW.
  - rewrite ler_pdivr_mulr //; apply: le_trans grown_ge _; rewrite ler_pemull ?(ltW grown_gt0) //.
    by rewrite -(exp_zero e) exp_le.
have s_ge1 : 1 <= e (- x) by rewrite -(exp_zero e) exp_le oppr_ge0.
have grown_ge1 : 1 <= grown.
  by rewrite -subr_ge0 (_ : _ - _ = a * (e (- x) - 1)) ?mulr_ge0 ?subr_ge0 // /grown; ring.
have grown_le : grown <= e (- x).
  by rewrite -subr_ge0 (_ : _ - _ = (1 - a) * (e (- x) - 1)) ?mulr_ge0 ?subr_ge0 // /grown; ring.
have lost_le0 : lost <= 0 by rewrite mulr_le0_ge0 ?invr_ge0 ?subr_le0 // ltW.
have lost_by : - lost = (e (- x) - 1) / grown by rewrite /lost -mulNr opprB.
rewrite (ler0_norm x_le0) (ler0_norm lost_le0) opprK lost_by; split=> //; first last.
- apply/andP; split.
    apply: (@le_trans _ _ 1); last by rewrite ler_pdivl_mulr ?mul1r.
    by rewrite -(exp_zero e) exp_le.
  by rewrite ler_pdivr_mulr // ler_pemulr // ltW.
- by rewrite -lost_by distrC addrC.
apply/andP; split; last by rewrite ler_pdivr_mulr // ler_pemulr // subr_ge0.
rewrite ler_pdivl_mulr // -[e x]invrK -exp_opp.
rewrite (_ : e (- x) - 1 = (1 - (e (- x))^-1) * e (- x)); last by field; exact: exp_neq0.
by apply: ler_wpmul2l grown_le; rewrite subr_ge0 invf_le1.
Qed.

Lemma small_factors : h <= 2%:R^-1 ->
  [/\ `| `|lost| - h| <= 3%:R / 5%:R * h ^+ 2, `|left - 1| <= 13%:R / 10%:R * h &
      `|lost ^+ 2 - h ^+ 2| <= 11%:R / 8%:R * h ^+ 3].
Proof.
move=> h_le; have h_ge0 := normr_ge0 x.
have [_ /andP[lost_ge lost_le] _ /andP[left_ge left_le]] := factors.
have above : e h <= 1 + h + 299%:R / 500%:R * h ^+ 2 by apply: exp_above; rewrite h_ge0.
have below : e (- h) <= 1 - h + 3%:R / 5%:R * h ^+ 2.
  have := exp_below e h_ge0; set b := 1 + h + _ => b_le.
  have b_gt0 : 0 < b by rewrite /b -addrA ltr_paddr ?ltr01 //; nonnegative.
  rewrite exp_opp; apply: (@le_trans _ _ b^-1); first by rewrite lef_pinv ?posrE ?exp_gt0.
  rewrite -[b^-1]mul1r ler_pdivr_mulr // -subr_ge0.
  rewrite (_ : _ - _ = h ^+ 2 * (3%:R / 80%:R + 13%:R / 80%:R * h + 21%:R / 80%:R * h ^+ 2)).
    by nonnegative.
  by rewrite /b; field.
have upper : `|lost| - h <= 299%:R / 500%:R * h ^+ 2.
  rewrite -subr_ge0 (_ : _ - _ = (e h - 1 - `|lost|) + (1 + h + 299%:R / 500%:R * h ^+ 2 - e h)); last by ring.
  by rewrite addr_ge0 ?subr_ge0.
have lower : h - `|lost| <= 3%:R / 5%:R * h ^+ 2.
  rewrite -subr_ge0 (_ : _ - _ = (`|lost| - (1 - e (- h))) + (1 - h + 3%:R / 5%:R * h ^+ 2 - e (- h))); last by ring.
  by rewrite addr_ge0 ?subr_ge0.
have half : 0 <= 2%:R^-1 - h by rewrite subr_ge0.
split.
- rewrite ler_norml ler_oppl opprB lower /=; apply: le_trans upper _.
  by apply: ler_wpmul2r; [nonnegative | rewrite -subr_ge0 (_ : _ - _ = 500%:R^-1); [nonnegative | field]].
- rewrite ler_norml ler_oppl opprB; apply/andP; split.
    apply: (@le_trans _ _ h); last by rewrite -subr_ge0 (_ : _ - _ = 3%:R / 10%:R * h); [nonnegative | field].
    rewrite -subr_ge0 (_ : _ - _ = (left - e (- h)) + (e (- h) - (1 + - h))); last by ring.
    by rewrite addr_ge0 ?subr_ge0 ?exp_ge.
  rewrite -subr_ge0 (_ : _ - _ = (e h - left) + (1 + h + 299%:R / 500%:R * h ^+ 2 - e h) +
    (299%:R / 500%:R * h * (2%:R^-1 - h) + h / 1000%:R)); last by field.
  have [? ?] : 0 <= e h - left /\ 0 <= 1 + h + 299%:R / 500%:R * h ^+ 2 - e h by rewrite !subr_ge0.
  by nonnegative.
have square : lost ^+ 2 = `|lost| ^+ 2 by rewrite real_normK ?num_real.
have lost_ge0 := normr_ge0 lost.
rewrite square ler_norml ler_oppl opprB; apply/andP; split.
  apply: (@le_trans _ _ (h ^+ 2 - (h - 3%:R / 5%:R * h ^+ 2) ^+ 2)).
    rewrite ler_add2l ler_opp2 ler_sqr ?nnegrE //; first by rewrite ler_subl_addr -ler_subl_addl.
    by rewrite (_ : _ - _ = h * (7%:R / 10%:R + 3%:R / 5%:R * (2%:R^-1 - h))); [nonnegative | field].
  by rewrite -subr_ge0 [X in _ <= X](_ : _ = h ^+ 3 * (7%:R / 40%:R + 9%:R / 25%:R * h)); [nonnegative | field].
apply: (@le_trans _ _ ((h + 299%:R / 500%:R * h ^+ 2) ^+ 2 - h ^+ 2)).
  by rewrite ler_add2r ler_sqr ?nnegrE //; [rewrite -ler_subl_addl | nonnegative].
rewrite -subr_ge0 [X in _ <= X](_ : _ = h ^+ 3 * ((299%:R / 500%:R) ^+ 2 * (2%:R^-1 - h) + 99%:R / (500%:R * 1000%:R))).
  by nonnegative.
by field.
Qed.
End Factors.
End Exponential.
